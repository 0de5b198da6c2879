-- Listen to a sequence and read its record and log in one step: nothing falls in between.
-- KEYS  1 request record  2 token log  3 order
-- ARGV  1 gateway, or "" to read only  2 index of the first log entry wanted
-- Returns {record as a flat list, log length, entries, order}
local listeners = redis.call('HGET', KEYS[1], 'listeners')
if listeners and ARGV[1] ~= '' and not string.find(' ' .. listeners .. ' ', ' ' .. ARGV[1] .. ' ', 1, true) then
  redis.call('HSET', KEYS[1], 'listeners', listeners == '' and ARGV[1] or listeners .. ' ' .. ARGV[1])
end
return {
  redis.call('HGETALL', KEYS[1]),
  redis.call('LLEN', KEYS[2]),
  redis.call('LRANGE', KEYS[2], ARGV[2], -1),
  redis.call('LRANGE', KEYS[3], 0, -1),
}
