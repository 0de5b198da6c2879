-- Mark an engine as draining and tell the scheduler.
-- KEYS  1 presence  2 inbox
-- ARGV  1 engine id  2 status
-- Returns 0 when the pool has forgotten the engine.
if not redis.call('SET', KEYS[1], ARGV[2], 'XX', 'KEEPTTL') then return 0 end
inbox_event(KEYS[2], {kind = 'engine_draining', engine = ARGV[1]})
return 1
