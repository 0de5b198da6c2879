-- Refresh a gateway's presence. PEXPIRE alone: a full server allows it.
-- KEYS  1 presence
-- ARGV  1 lease in ms
-- Returns 0 when the pool has forgotten the gateway.
return redis.call('PEXPIRE', KEYS[1], ARGV[1])
