#pragma once
// The one by-value argument of every forward kernel. Python reads this struct's fields from this file (flashgen/params.py), so a field
// stands on a line of its own and its type is one of: TensorMap, float, int, long long, T*.
//
// B batch, Hq/Hkv query/key-value heads, Sq/Sk query/key length, Dqk/Dv head dimensions, M x N the tile (query rows x keys).

#include <flashgen/common/tensor_map.h>

namespace flashgen {

struct ForwardParams {
  TensorMap q;                // (Dqk, Sq, Hq, B), box {swizzle width, 64, 1, 1}
  TensorMap k;                // (Dqk, Sk, Hkv, B), box {swizzle width, N, 1, 1}
  TensorMap v;                // (Dv, Sk, Hkv, B), box {swizzle width, N, 1, 1}
  TensorMap out;              // (Dv, Sq, Hq, B), box {swizzle width, 64, 1, 1}
  void* out_data;             // (B, Sq, Hq, Dv) what the map `out` covers, for stores from registers
  float* lse;                 // (B, Hq, Sq) natural log of the softmax denominator; null: not wanted
  int* tile_counter;          // {next tile, finished blocks}: zero before the first launch, left zero by every launch
  long long out_batch_stride; // elements
  long long out_row_stride;   // elements
  long long out_head_stride;  // elements
  int batch;                  // B
  int heads_q;                // Hq
  int heads_kv;               // Hkv, divides Hq
  int seqlen_q;               // Sq
  int seqlen_k;               // Sk
  int m_blocks;               // ceil(Sq / M)
  int tiles;                  // m_blocks * Hq * B
  int heads_per_group;        // query heads (of B * Hq) whose keys and values fit in L2 together
  float scale_log2;           // softmax scale * log2(e)
};

}  // namespace flashgen
