#pragma once
// A block of keys of one key-value head, and the query blocks that see it, in what order. A thread block computes one, or, if kPersistent, one
// after another.
#include <cute/numeric/integral_constant.hpp>
#include <flashgen/attention/backward_mask.cuh>
#include <flashgen/fa3/backward/smem.cuh>

namespace flashgen::fa3::backward {

template <class Config>
struct KeyTile {
  using Mask = BackwardMask<typename Config::Mask>;
  // Blocks of keys that begin at once with the same rows would add to the same dQ all the way. Where all rows see all keys they begin all over
  // the rows instead. Not in a fixed order: who is to wait for others meets them one after another from the first row on.
  static constexpr bool kRotates = !Mask::kUnevenKeys && !Config::kDeterministic;
  // Whether heads go fastest: of a head few blocks then run at a time, one behind the other.
  static constexpr bool kLevels = Mask::kUnevenKeys || Config::kDeterministic;

  int n_block, head_kv, batch;
  int first_m_block;  // that sees these keys; >= m_blocks: none does
  int start;          // the one to begin with

  // All of a head, then the next head; or level by level within a group of heads that stays in L2, the longest first.
  // NOTE: when dQ is added in a fixed order a block waits for others; those must have started before it (see turn), so that with uneven blocks
  // later keys come first.
  __device__ __forceinline__ explicit KeyTile(BackwardParams const& params, int tile) {
    int head_of_batches;
    if constexpr (kLevels) {
      int const tiles_per_group = params.n_blocks * params.heads_per_group;
      int const group = tile / tiles_per_group, in_group = tile - group * tiles_per_group, first = group * params.heads_per_group;
      int const width = min(params.heads_per_group, params.batch * params.heads_kv - first), level = in_group / width;
      n_block = Config::kDeterministic && Mask::kUnevenKeys ? params.n_blocks - 1 - level : level;
      head_of_batches = first + in_group - level * width;
    } else {
      head_of_batches = tile / params.n_blocks;
      n_block = tile - head_of_batches * params.n_blocks;
    }
    batch = head_of_batches / params.heads_kv;
    head_kv = head_of_batches - batch * params.heads_kv;
    first_m_block = Mask::template first_m_block<Config::kBlockM, Config::kBlockN>(params, n_block);
    start = kRotates ? static_cast<int>(static_cast<int64_t>(n_block) * params.m_blocks / params.n_blocks) : first_m_block;
  }

  // All of a launch.
  __device__ __forceinline__ static int tiles(BackwardParams const& params) { return params.n_blocks * params.heads_kv * params.batch; }

  // How many blocks of keys add to a block of dQ before this one. Uneven: the last block of keys that the rows see comes first, since it
  // starts with these rows and earlier ones reach them later.
  __device__ __forceinline__ int turn(BackwardParams const& params, int m_block) const {
    if constexpr (Mask::kUnevenKeys) return Mask::template last_n_block<Config::kBlockM, Config::kBlockN>(params, m_block) - n_block;
    else return n_block;
  }

  // Calls f(query head, block of its rows) for everything that sees these keys, in order.
  template <class F>
  __device__ __forceinline__ void for_each_m_block(BackwardParams const& params, F&& f) const {
    int const group = params.heads_q / params.heads_kv;
    CUTE_NO_UNROLL
    for (int head = head_kv * group; head < (head_kv + 1) * group; ++head) {
      CUTE_NO_UNROLL
      for (int m_block = start; m_block < params.m_blocks; ++m_block) f(head, m_block);
      if constexpr (kRotates) {
        CUTE_NO_UNROLL
        for (int m_block = 0; m_block < start; ++m_block) f(head, m_block);
      }
    }
  }
  // The block of rows that follows in that order, of this head or the next.
  __device__ __forceinline__ int after(BackwardParams const& params, int m_block) const {
    return m_block + 1 < params.m_blocks ? m_block + 1 : first_m_block;
  }
  // How many those are.
  __device__ __forceinline__ int blocks(BackwardParams const& params) const {
    return max(0, params.m_blocks - first_m_block) * (params.heads_q / params.heads_kv);
  }
  __device__ __forceinline__ bool is_seen(BackwardParams const& params) const { return first_m_block < params.m_blocks; }
  // A block of query rows among all of a launch.
  __device__ __forceinline__ int64_t m_tile(BackwardParams const& params, int head, int m_block) const {
    return (static_cast<int64_t>(batch) * params.heads_q + head) * params.m_blocks + m_block;
  }
};

// Calls f(block of keys) for all that this thread block computes, ahead of the consumers. Its callers have few registers.
template <class Config, class F>
__device__ __forceinline__ void for_each_tile(BackwardParams const& params, Smem<Config>& smem, F&& f) {
  if constexpr (!Config::kPersistent) {
    f(KeyTile<Config>(params, blockIdx.x));
  } else {
    auto next = [&] {
      int reader = threadIdx.x;
      ptx::opaque(reader);
      int& own = smem.keys.next_phase[reader / 32];
      int const phase = ptx::load_shared(own);
      ptx::store_shared(own, phase ^ 1);
      ptx::barrier_wait(&smem.keys.next_full, phase);
      int const tile = ptx::load_shared(smem.keys.next_tile);
      ptx::barrier_arrive(&smem.keys.next_empty);
      return tile;
    };
    int tile = blockIdx.x;
    if constexpr (Config::kDeterministic) tile = next();
    CUTE_NO_UNROLL
    while (tile >= 0) {
      f(KeyTile<Config>(params, tile));
      tile = next();
    }
  }
}

}  // namespace flashgen::fa3::backward
