-- Give the lead up.
-- KEYS  1 leader
-- ARGV  1 fence
-- Returns 0 when this fence leads no longer.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
