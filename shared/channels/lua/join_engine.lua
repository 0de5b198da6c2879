-- Announce an engine: presence, index, an empty batch stream, an inbox event.
-- KEYS  1 engines  2 presence  3 batches  4 inbox  5 progress  6 totals
-- ARGV  1 engine id  2 status  3 lease in ms  4 engine name
-- Returns the number that its iterations continue from: numbers count per stable name.
local start = tonumber(redis.call('HGET', KEYS[6], 'last_iteration:' .. ARGV[4]) or 0)
redis.call('SADD', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
if redis.call('EXISTS', KEYS[3]) == 0 then
  -- An entry added and deleted leaves an empty stream that knows its last id.
  local id = start .. '-1'
  redis.call('XADD', KEYS[3], id, 'm', '')
  redis.call('XDEL', KEYS[3], id)
end
redis.call('PEXPIRE', KEYS[3], ARGV[3])
redis.call('HSET', KEYS[5], ARGV[1], 0)
inbox_add(KEYS[4], string.format('{"version":%d,"kind":"engine_joined","status":%s}', VERSION, ARGV[2]))
return start
