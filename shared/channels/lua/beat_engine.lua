-- Refresh an engine's presence. Begins with PEXPIRE, which a full server allows.
-- KEYS  1 presence  2 batches  3 progress
-- ARGV  1 engine id  2 progress  3 lease in ms
-- Returns 0 when the pool has forgotten the engine.
if redis.call('PEXPIRE', KEYS[1], ARGV[3]) == 0 then return 0 end
if redis.call('PEXPIRE', KEYS[2], ARGV[3]) == 0 then return 0 end
redis.call('HSET', KEYS[3], ARGV[1], ARGV[2])
return 1
