"""The model: a `transformers` decoder that runs unchanged on the flat tokens of a whole batch.

Knows tensors and nothing of Redis, requests' texts or scheduling. Shapes, everywhere here:
`B` sequences in the batch, `L_i` tokens of sequence i in this iteration, `T = sum L_i`,
`H` hidden size, `h` query heads, `g` K/V heads, `d` head size, `N_i` K/V length of sequence i,
`V` vocabulary.
"""
