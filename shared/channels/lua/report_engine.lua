-- Answer a leader's question through the inbox.
-- KEYS  1 presence  2 inbox
-- ARGV  1 engine id  2 report
-- Returns 0 when the pool has forgotten the engine.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
inbox_event(KEYS[2], {kind = 'reported', engine = ARGV[1], report = ARGV[2]})
return 1
