-- Write an iteration's tokens, exactly once.
-- KEYS  1 committed of the engine  2 open  3 inbox  4 groups  5 totals  6 iterations  7 gauges
--       then per output: request record, token log, order, prompt
-- ARGV  1 result  2 events prefix  3 engine name  4 iterations kept
-- Returns JSON {id: accepted}. A number already committed returns the stored answer.
local result = cjson.decode(ARGV[1])
local stored = redis.call('GET', KEYS[1])
if stored then
  local number, answer = string.match(stored, '^(%d+) (.*)$')
  if tonumber(number) >= result.iteration then return answer end
end

local answer, outputs, generated, stale = {}, {}, 0, 0
for i, output in ipairs(result.outputs) do
  local base = 7 + 4 * (i - 1)
  local k = {request = KEYS[base + 1], log = KEYS[base + 2], order = KEYS[base + 3],
    prompt = KEYS[base + 4], open = KEYS[2], groups = KEYS[4], totals = KEYS[5]}
  local record = load_record(k.request)
  local length = redis.call('LLEN', k.log)
  local owned = record.engine == result.engine and record.attempt == output.attempt
  local accepted = owned and record.state == 'running' and output.index == length
  local state = record.state
  if accepted then
    if output.token ~= cjson.null then
      redis.call('RPUSH', k.log, output.entry)
      if record.n_choices > 1 then redis.call('RPUSH', k.order, record.choice) end
      if length == 0 then redis.call('HSET', k.request, 'at_first_token', now()) end
      generated = generated + 1
      tell(record.listeners, {kind = 'token', id = output.id, index = length, entry = output.entry})
    end
    if output.code ~= '' then
      state = 'failed'
      finish(k, output.id, record, state, '', output.code, output.message, -1)
    elseif output.finish_reason ~= '' then
      state = 'completed'
      finish(k, output.id, record, state, output.finish_reason, '', '', -1)
    end
  elseif not (owned and is_final(record.state)) then
    stale = stale + 1
  end
  answer[output.id] = accepted
  outputs[i] = {id = output.id, attempt = output.attempt, accepted = accepted, index = output.index,
    token = output.token, ended = is_final(state), code = output.code}
end

answer = cjson.encode(answer)
redis.call('SET', KEYS[1], string.format('%d %s', result.iteration, answer), 'EX', 3600)
-- An empty Lua table encodes as an object; the outputs are a list even when there are none.
local list = #outputs > 0 and cjson.encode(outputs) or '[]'
inbox_add(KEYS[3], string.format('{"version":%d,"kind":"result","engine":%s,"iteration":%d,"outputs":%s}',
  VERSION, cjson.encode(result.engine), result.iteration, list))
-- An earlier start of this engine may wake and commit late: the count of its name never goes back.
local last = tonumber(redis.call('HGET', KEYS[5], 'last_iteration:' .. ARGV[3]) or 0)
redis.call('HSET', KEYS[5], 'last_iteration:' .. ARGV[3], math.max(last, result.iteration))
if #outputs > 0 then
  redis.call('XADD', KEYS[6], 'MAXLEN', '~', ARGV[4], '*', 'm', result.record)
  redis.call('EXPIRE', KEYS[6], 86400)
  redis.call('HINCRBY', KEYS[5], 'iterations:' .. ARGV[3], 1)
  redis.call('HINCRBY', KEYS[5], 'generated_tokens', generated)
  redis.call('HINCRBY', KEYS[5], 'stale_writes', stale)
end
if result.record ~= '' then redis.call('HSET', KEYS[7], ARGV[3], result.record) end
flush(ARGV[2])
return answer
