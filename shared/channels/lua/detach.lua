-- Stop listening to a sequence.
-- KEYS  1 request record
-- ARGV  1 gateway
-- Returns how many listeners are left.
local listeners = redis.call('HGET', KEYS[1], 'listeners')
if not listeners then return 0 end
-- A write that a full server allows comes first, so that the one that follows is allowed too.
redis.call('HDEL', KEYS[1], '')
local left = {}
for gateway in string.gmatch(listeners, '%S+') do
  if gateway ~= ARGV[1] then left[#left + 1] = gateway end
end
redis.call('HSET', KEYS[1], 'listeners', table.concat(left, ' '))
return #left
