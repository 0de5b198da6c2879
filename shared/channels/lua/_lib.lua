-- Put in front of every script. Local helpers only; touches no key that its caller has not named.

local VERSION = 1

-- Redis time in seconds, as text with microseconds: the one clock of the whole system.
local function now()
  local t = redis.call('TIME')
  return string.format('%d.%06d', t[1], t[2])
end

local function inbox_add(inbox, json)
  redis.call('XADD', inbox, '*', 'm', json)
end

local function inbox_event(inbox, event)
  event.version = VERSION
  inbox_add(inbox, cjson.encode(event))
end

-- Events wait here until `flush`: one message per gateway and script, in order.
local outbox, outbox_order = {}, {}

local function tell(listeners, event)
  for gateway in string.gmatch(listeners, '%S+') do
    if not outbox[gateway] then
      outbox[gateway] = {}
      outbox_order[#outbox_order + 1] = gateway
    end
    table.insert(outbox[gateway], event)
  end
end

local function flush(prefix)
  for _, gateway in ipairs(outbox_order) do
    local message = {version = VERSION, kind = 'events', events = outbox[gateway]}
    redis.call('PUBLISH', prefix .. gateway, cjson.encode(message))
  end
end

local function is_final(state)
  return state == 'completed' or state == 'cancelled' or state == 'failed'
end

-- What scripts need of a record, as a table; `state` is false for a missing one.
local function load_record(key)
  local v = redis.call('HMGET', key, 'state', 'engine', 'attempt', 'listeners', 'group',
    'prompt_index', 'choice', 'n_choices', 'ttl', 'n_tokens')
  return {
    key = key, state = v[1], engine = v[2], attempt = tonumber(v[3]), listeners = v[4],
    group = v[5], prompt_index = v[6], choice = v[7], n_choices = tonumber(v[8]),
    ttl = tonumber(v[9]), n_tokens = tonumber(v[10]),
  }
end

-- An API request counts once, with its worst outcome, when the last of its sequences ends.
local function leave_group(k, record, outcome)
  local group = record.group
  if outcome ~= 'completed' and redis.call('HGET', k.groups, group .. '!') ~= 'failed' then
    redis.call('HSET', k.groups, group .. '!', outcome)
  end
  if redis.call('HINCRBY', k.groups, group .. '/' .. record.prompt_index, -1) <= 0 then
    redis.call('HDEL', k.groups, group .. '/' .. record.prompt_index)
    redis.call('EXPIRE', k.prompt, record.ttl)
  end
  if redis.call('HINCRBY', k.groups, group, -1) <= 0 then
    local worst = redis.call('HGET', k.groups, group .. '!') or 'completed'
    redis.call('HDEL', k.groups, group, group .. '!')
    redis.call('EXPIRE', k.order, record.ttl)
    redis.call('HINCRBY', k.totals, 'requests:' .. worst, 1)
  end
end

-- End a sequence. k names: request, log, order, prompt, open, groups, totals. The first write is
-- a ZREM, which a server without free memory allows; all that follow are then allowed too.
local function finish(k, id, record, outcome, reason, code, message, n_tokens)
  redis.call('ZREM', k.open, id)
  local length = redis.call('LLEN', k.log)
  n_tokens = n_tokens < 0 and length or math.min(n_tokens, length)
  redis.call('HSET', k.request, 'state', outcome, 'finish_reason', reason, 'code', code,
    'message', message, 'n_tokens', n_tokens, 'at_ended', now())
  if record.state == 'running' then redis.call('HINCRBY', k.totals, 'running', -1) end
  leave_group(k, record, outcome)
  redis.call('EXPIRE', k.request, record.ttl)
  redis.call('EXPIRE', k.log, record.ttl)
  tell(record.listeners, {kind = 'state', id = id, state = outcome, attempt = record.attempt,
    n_tokens = n_tokens, finish_reason = reason, code = code, message = message})
end
