#pragma once
// The one by-value argument of every forward kernel. Python reads this struct's fields from this file (flashgen/params.py), so a field
// stands on a line of its own and its type is one of: TensorMap, float, int, T*.
//
// B batch, Hq/Hkv query/key-value heads, Sq/Sk query/key length, Dqk/Dv head dimensions, M x N the tile (query rows x keys).

namespace flashgen {

struct alignas(64) TensorMap { char bytes[128]; };  // an encoded CUtensorMap

struct ForwardParams {
  TensorMap q;          // (Dqk, Sq, Hq, B), box {swizzle width, 64, 1, 1}
  TensorMap k;          // (Dqk, Sk, Hkv, B), box {swizzle width, N, 1, 1}
  TensorMap v;          // (Dv, Sk, Hkv, B), box {swizzle width, N, 1, 1}
  TensorMap out;        // (Dv, Sq, Hq, B), box {swizzle width, 64, 1, 1}
  float* lse;           // (B, Hq, Sq) natural log of the softmax denominator; null: not wanted
  int* tile_counter;    // {next tile, finished blocks}: zero before the first launch, left zero by every launch
  int batch;            // B
  int heads_q;          // Hq
  int heads_kv;         // Hkv, divides Hq
  int seqlen_q;         // Sq
  int seqlen_k;         // Sk
  int m_blocks;         // ceil(Sq / M)
  int tiles;            // m_blocks * Hq * B
  int heads_per_group;  // query heads (of B * Hq) whose keys and values fit in L2 together
  float scale_log2;     // softmax scale * log2(e)
};

}  // namespace flashgen
