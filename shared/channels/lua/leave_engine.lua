-- Forget an engine that stops, or (with a fence) that the leader found lost.
-- KEYS  1 leader  2 engines  3 presence  4 batches  5 committed  6 inbox  7 progress  8 gauges
-- ARGV  1 engine id  2 fence, or ""  3 engine name
if ARGV[2] ~= '' and redis.call('GET', KEYS[1]) ~= ARGV[2] then return 'FENCED' end
redis.call('SREM', KEYS[2], ARGV[1])
redis.call('DEL', KEYS[3], KEYS[4], KEYS[5])
redis.call('HDEL', KEYS[7], ARGV[1])
redis.call('HDEL', KEYS[8], ARGV[3])
inbox_event(KEYS[6], {kind = 'engine_left', engine = ARGV[1]})
return 'OK'
