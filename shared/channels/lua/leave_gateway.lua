-- Forget a gateway that stops.
-- KEYS  1 gateways  2 presence
-- ARGV  1 gateway id
redis.call('SREM', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2])
return 1
