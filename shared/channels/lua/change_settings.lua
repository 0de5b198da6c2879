-- Change runtime settings and tell the scheduler.
-- KEYS  1 settings  2 inbox
-- ARGV  name and JSON value, in turn
-- Returns all settings, name and value in turn.
redis.call('HSET', KEYS[1], unpack(ARGV))
local fields = redis.call('HGETALL', KEYS[1])
inbox_event(KEYS[2], {kind = 'settings', fields = fields})
return fields
