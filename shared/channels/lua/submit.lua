-- Accept a group of sequences, or none of them.
-- KEYS  1 open  2 arrival  3 inbox  4 groups  5 totals  6 idempotency
--       then the prompts of the group, then its request records
-- ARGV  1 group  2 gateway  3 max_queue  4 record ttl  5 "1" to bind the key  6 fingerprint
--       7 the group that the key may be taken from  8 seconds that a key binds
--       9 number of requests  10 number of prompts  11 prompt tokens
--       then the prompts, then per request: id, body, choice, prompt index
-- Returns JSON [outcome, group]; accepted, full, known (same key and body) or conflict.
local group, gateway, ttl = ARGV[1], ARGV[2], ARGV[4]
local n_requests, n_prompts = tonumber(ARGV[9]), tonumber(ARGV[10])
local first_request = 6 + n_prompts

if redis.call('EXISTS', KEYS[first_request + 1]) == 1 then
  return cjson.encode({'accepted', group})
end
-- A submit without a key names one that is never bound.
local bound = redis.call('GET', KEYS[6])
if bound then
  local print, other = string.match(bound, '^(%S+) (%S+)$')
  if other ~= ARGV[7] then
    return cjson.encode({print == ARGV[6] and 'known' or 'conflict', other})
  end
end
if redis.call('ZCARD', KEYS[1]) + n_requests > tonumber(ARGV[3]) then
  return cjson.encode({'full', group})
end

local arrival = redis.call('INCRBY', KEYS[2], n_requests) - n_requests
local at = now()
for i = 1, n_prompts do
  redis.call('SET', KEYS[6 + i], ARGV[11 + i])
end
redis.call('HSET', KEYS[4], group, n_requests)
redis.call('HINCRBY', KEYS[5], 'prompt_tokens', ARGV[11])
for i = 1, n_requests do
  local at_arg = 11 + n_prompts + 4 * (i - 1)
  local id, body = ARGV[at_arg + 1], ARGV[at_arg + 2]
  local choice, prompt_index = ARGV[at_arg + 3], ARGV[at_arg + 4]
  arrival = arrival + 1
  redis.call('HSET', KEYS[first_request + i], 'body', body, 'state', 'waiting', 'arrival', arrival,
    'attempt', 0, 'engine', '', 'strikes', 0, 'listeners', gateway, 'group', group,
    'choice', choice, 'n_choices', n_requests, 'prompt_index', prompt_index, 'ttl', ttl,
    'at_submitted', at)
  redis.call('HINCRBY', KEYS[4], group .. '/' .. prompt_index, 1)
  redis.call('ZADD', KEYS[1], arrival, id)
  inbox_event(KEYS[3], {kind = 'submit', id = id, arrival = arrival, request = body})
end
if ARGV[5] == '1' then
  redis.call('SET', KEYS[6], ARGV[6] .. ' ' .. group, 'EX', ARGV[8])
end
return cjson.encode({'accepted', group})
