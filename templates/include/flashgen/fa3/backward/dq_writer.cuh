#pragma once
// The threads that add the consumers' parts of dQ to its accumulator in global memory, in bulk, each every kDqWriters-th block of rows. With
// kStoresFirst who comes first to a block of rows stores instead; with kDeterministic all come in the order of the keys.
#include <flashgen/fa3/backward/key_tile.cuh>
#include <flashgen/fa3/backward/smem.cuh>

namespace flashgen::fa3::backward {

template <class Config>
struct DqWriter {
  using Dq = DqSplit<Config>;
  static constexpr int kParts = Dq::kColumns[1] > 0 ? 2 : 1;
  // Of a block's state: lower half, blocks of keys that have claimed it; upper half, those whose part stands there: all of them with
  // kDeterministic, else the one that stored.
  static constexpr long long kClaim = 1, kAdded = 1ll << 32;
  // Whether who comes to rows looks, ahead of its part, if something stands there: mostly so, and then it need not ask when its part is there.
  // With more rows at once there is time to ask, and looking takes longer.
  static constexpr bool kLooks = Config::kStoresFirst && !Config::kDeterministic && Config::kBlockM == 64;

  // Adds a pass of one warpgroup, which is there.
  template <int kWarpgroup>
  __device__ __forceinline__ static void add(Smem<Config>& smem, bool first, float* accum, int pass) {
    float* const to = accum + Dq::offset(kWarpgroup) + pass * Dq::floats(kWarpgroup);
    float const* const from = smem.dq + kWarpgroup * Dq::floats(0);
    if (first) ptx::row_store(to, from, Dq::floats(kWarpgroup) * 4);
    else ptx::row_add(to, from, Dq::floats(kWarpgroup) * 4);
    ptx::store_commit();
  }

  // Waits for the turn of this block of keys.
  __device__ __forceinline__ static void await_turn(long long* state, int turn) {
    while (ptx::load_acquire(state) >> 32 != turn) {}
  }
  // Whether this block of keys is the first to come to the rows; else waits until what the first one stored is there.
  __device__ __forceinline__ static bool claim(long long* state) {
    long long before = ptx::add_acquire(state, kClaim);
    if (before == 0) return true;
    while (before < kAdded) before = ptx::load_acquire(state);
    return false;
  }

  __device__ __forceinline__ static void run(BackwardParams const& params, Smem<Config>& smem) {
    unsigned index = 0;
    for_each_tile(params, smem, [&](KeyTile<Config> const& tile) { add_all(params, smem, tile, index); });
    ptx::store_wait();
  }

  __device__ __forceinline__ static void add_all(BackwardParams const& params, Smem<Config>& smem, KeyTile<Config> const& tile, unsigned& index) {
    tile.for_each_m_block(params, [&](int head, int m_block) {
      int thread = threadIdx.x;  // asked for anew: registers are scarcer here than instructions
      ptx::opaque(thread);
      unsigned const writer = thread / 32 - 1;
      if (index++ % kDqWriters != writer) return;
      unsigned const passed = (index - 1) / kDqWriters * Dq::kPasses;  // by this writer
      int64_t const at = tile.m_tile(params, head, m_block);
      float* const accum = params.dq_accum + at * (Config::kBlockM * Config::kHeadDimQK);
      long long* const state = params.dq_state + at;
      bool first = false, may_add = Config::kDeterministic || !Config::kStoresFirst;
      if constexpr (Config::kDeterministic) {  // its turn may come before its part is there: nobody waits for who looks
        int const turn = tile.turn(params, m_block);
        await_turn(state, turn);
        first = Config::kStoresFirst && turn == 0;
      } else if constexpr (kLooks) {
        may_add = ptx::load_acquire(state) >= kAdded;
      }
      if constexpr (Config::kDeterministic || kLooks) ptx::fence_async_proxy_global();
      CUTE_UNROLL
      for (int pass = 0; pass < Dq::kPasses; ++pass) {
        ptx::barrier_wait(&smem.dq_full[0][writer], (passed + pass) % 2);
        if (!may_add) {  // not before its part is there: others wait for who claims a block
          if constexpr (kParts == 2) ptx::barrier_wait(&smem.dq_full[1][writer], (passed + pass) % 2);
          first = claim(state);
          ptx::fence_async_proxy_global();
          may_add = true;
        }
        add<0>(smem, first, accum, pass);
        if constexpr (kParts == 2) {
          ptx::barrier_wait(&smem.dq_full[1][writer], (passed + pass) % 2);
          add<1>(smem, first, accum, pass);
        }
        ptx::store_wait_read_but<kParts - 1>();
        ptx::barrier_arrive(&smem.dq_empty[0]);
        if constexpr (kParts == 2) {
          ptx::store_wait_read_but<0>();
          ptx::barrier_arrive(&smem.dq_empty[1]);
        }
      }
      if (Config::kDeterministic || first) {
        ptx::store_wait();
        ptx::add_release(state, kAdded);
      }
    });
  }
};

}  // namespace flashgen::fa3::backward
