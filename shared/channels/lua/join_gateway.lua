-- Announce a gateway.
-- KEYS  1 gateways  2 presence
-- ARGV  1 gateway id  2 status  3 lease in ms
redis.call('SADD', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
return 1
