-- Let a sequence wait again, with prompt and log as its input, under the next attempt.
-- KEYS  1 leader  2 request record  3 inbox  4 totals
-- ARGV  1 fence  2 sequence  3 the engine it is taken from  4 its attempt there  5 "1" for a strike
--       6 events prefix
-- Returns FENCED, 0 (the record says otherwise) or 1. Keeps the arrival number.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'FENCED' end
local record = load_record(KEYS[2])
if record.state ~= 'running' or record.engine ~= ARGV[3] or record.attempt ~= tonumber(ARGV[4]) then
  return 0
end
local attempt = record.attempt + 1
redis.call('HSET', KEYS[2], 'state', 'waiting', 'engine', '', 'attempt', attempt)
if ARGV[5] == '1' then redis.call('HINCRBY', KEYS[2], 'strikes', 1) end
redis.call('HINCRBY', KEYS[4], 'running', -1)
inbox_event(KEYS[3], {kind = 'reassigned', id = ARGV[2], attempt = attempt})
tell(record.listeners, {kind = 'state', id = ARGV[2], state = 'waiting', attempt = attempt})
flush(ARGV[6])
return 1
