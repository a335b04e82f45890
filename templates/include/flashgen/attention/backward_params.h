#pragma once
// The one by-value argument of the three kernels of a backward: preprocess, main, postprocess. Python reads this struct's fields from this
// file, so a field stands on a line of its own and its type is one of: TensorMap, float, int, long long, T*.
//
// B batch, Hq/Hkv query/key-value heads, Sq/Sk query/key length, Dqk/Dv head dimensions, M x N the tile (query rows x keys), Mp = m_blocks * M.
// Strides are in elements; the last dimension is contiguous and rows start at multiples of 16 bytes.

#include <flashgen/common/tensor_map.h>

namespace flashgen {

struct BackwardParams {
  TensorMap q;                 // (Dqk, Sq, Hq, B), box {swizzle width, M, 1, 1}
  TensorMap k;                 // (Dqk, Sk, Hkv, B), box {swizzle width, N, 1, 1}
  TensorMap v;                 // (Dv, Sk, Hkv, B), box {swizzle width, N, 1, 1}
  TensorMap dout;              // (Dv, Sq, Hq, B), box {swizzle width, M, 1, 1}
  void* out_data;              // (B, Sq, Hq, Dv), read by the preprocess
  void* dout_data;             // (B, Sq, Hq, Dv), what the map `dout` covers, read by the preprocess
  float* lse;                  // (B, Hq, Sq) natural log of the softmax denominator, -inf where a row saw no key
  float* dlse;                 // (B, Hq, Sq) gradient of lse; null: zero
  float* lse_log2;             // (B, Hq, Mp) written by the preprocess; +inf where P shall be zero
  float* dpsum;                // (B, Hq, Mp) written by the preprocess: rowsum(dout * out) - dlse
  float* dq_accum;             // (B, Hq, m_blocks, M * Dqk) in the order of postprocess.cuh; garbage where rows see no key
  long long* dq_state;         // (B, Hq, m_blocks) who has added to a block of dq_accum (dq_writer.cuh); zeroed by the preprocess
  void* dq;                    // (B, Sq, Hq, Dqk)
  void* dk;                    // (B, Sk, Hkv, Dqk)
  void* dv;                    // (B, Sk, Hkv, Dv)
  long long out_batch_stride;
  long long out_row_stride;
  long long out_head_stride;
  long long dout_batch_stride;
  long long dout_row_stride;
  long long dout_head_stride;
  long long dq_batch_stride;
  long long dq_row_stride;
  long long dq_head_stride;
  long long dk_batch_stride;
  long long dk_row_stride;
  long long dk_head_stride;
  long long dv_batch_stride;
  long long dv_row_stride;
  long long dv_head_stride;
  int batch;                   // B
  int heads_q;                 // Hq
  int heads_kv;                // Hkv, divides Hq
  int seqlen_q;                // Sq
  int seqlen_k;                // Sk
  int m_blocks;                // ceil(Sq / M): the preprocess and the postprocess have m_blocks * Hq * B blocks
  int n_blocks;                // ceil(Sk / N): the main kernel has n_blocks * Hkv * B blocks, or, if kPersistent, at most as many as multiprocessors
  int heads_per_group;         // key-value heads (of B * Hkv) that share a level of KeyTile's order
  float scale;                 // softmax scale
  float scale_log2;            // softmax scale * log2(e)
  int* next_tile;              // how many blocks of keys have been taken (key_producer.cuh); zeroed by the preprocess. Not null if kPersistent
};

}  // namespace flashgen
