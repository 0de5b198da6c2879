-- After Redis went back in time: the record if it is missing, and shown tokens that the log lacks.
-- KEYS  1 request record  2 token log  3 prompt  4 open  5 arrival  6 inbox  7 groups
-- ARGV  1 sequence  2 body  3 prompt  4 gateway  5 record ttl  6 group  7 prompt index  8 choice
--       9 n_choices  then the log entries that a client has been shown
-- Returns intact, restored, or contradiction (the log is no prefix of them, nor they of it).
local log = redis.call('LRANGE', KEYS[2], 0, -1)
for i = 1, math.min(#log, #ARGV - 9) do
  if cjson.decode(log[i]).token ~= cjson.decode(ARGV[9 + i]).token then return 'contradiction' end
end

local answer = 'intact'
local state = redis.call('HGET', KEYS[1], 'state')
if not state then
  local arrival = redis.call('INCR', KEYS[5])
  redis.call('HSET', KEYS[1], 'body', ARGV[2], 'state', 'waiting', 'arrival', arrival, 'attempt', 0,
    'engine', '', 'strikes', 0, 'listeners', ARGV[4], 'group', ARGV[6], 'choice', ARGV[8],
    'n_choices', ARGV[9], 'prompt_index', ARGV[7], 'ttl', ARGV[5], 'at_submitted', now())
  redis.call('SET', KEYS[3], ARGV[3])
  redis.call('HINCRBY', KEYS[7], ARGV[6], 1)
  redis.call('HINCRBY', KEYS[7], ARGV[6] .. '/' .. ARGV[7], 1)
  redis.call('ZADD', KEYS[4], arrival, ARGV[1])
  inbox_event(KEYS[6], {kind = 'submit', id = ARGV[1], arrival = arrival, request = ARGV[2]})
  answer = 'restored'
end
if not is_final(state) then
  for i = #log + 1, #ARGV - 9 do
    redis.call('RPUSH', KEYS[2], ARGV[9 + i])
    answer = 'restored'
  end
end
return answer
