#pragma once
// A consumer warpgroup: 64 query rows of each tile against all their key blocks, last block first (FlashAttention-3, Shah et al. 2024).
//
// With kOverlap the products of two blocks are in flight together; with kPingPong two warpgroups take turns, so that one's softmax hides behind the
// other's products:
//   warpgroup 0: | S(n) O(n+1) issued | softmax(n) ........ | S(n-1) O(n) issued | ...
//   warpgroup 1: | softmax(n+1) ..... | S(n) O(n+1) issued  | softmax(n) ....... | ...
// Softmax(n) waits for S(n) alone, but with kLazyRescale for O(n+1) too: its P take the registers that O(n+1) reads. That costs less than it saves,
// no pass over the scores for their maximum and no P in float32 beside the packed ones.
// Where later rows see more keys, a warpgroup skips the tile's last blocks that only the others see, but takes its turns.
#include <flashgen/attention/mask.cuh>
#include <flashgen/attention/softmax.cuh>
#include <flashgen/common/pipeline.cuh>
#include <flashgen/common/wgmma.cuh>
#include <flashgen/fa3/epilogue.cuh>

namespace flashgen::fa3 {

template <class Config>
struct Consumer {
  using Element = typename Config::Element;
  using T = Tiles<Config>;
  using Mask = typename Config::Mask;
  static constexpr int kBlockM = Config::kBlockM, kBlockN = Config::kBlockN, kWarpgroups = Config::kConsumerWarpgroups;
  // Whether the first warpgroup sees a block less than the last wherever the tile lies; else looking costs more than it saves.
  static constexpr bool skips() { return Mask::kUnevenRows && kBlockM - 64 >= kBlockN; }

  ForwardParams const& params;
  Smem<Config>& smem;
  int const warpgroup, thread;
  Descriptor const q_tiles, k_tiles, v_tiles;
  PipelineState<Config::kStagesQ> q;
  PipelineState<Config::kStages> k, v;
  float scores[kBlockN / 2];             // S; then P in float32, but with kLazyRescale S is kept
  float acc[Config::kHeadDimV / 2];      // O, not yet normalised
  uint32_t p[kBlockN / 4];               // P as A operand: 16-bit pairs
  Softmax<kBlockN> softmax;
  int accumulate = 0;                    // 0: the tile's next O product starts from zero

  __device__ __forceinline__ Consumer(ForwardParams const& params, Smem<Config>& smem, int warpgroup, int thread)
      : params(params), smem(smem), warpgroup(warpgroup), thread(thread), q_tiles(T::Q::k_major(smem.q + warpgroup * T::Q::kBytes)),
        k_tiles(T::K::k_major(smem.k)), v_tiles(T::V::mn_major(smem.v)) {}

  __device__ __forceinline__ void await_turn() {
    if constexpr (Config::kPingPong) ptx::named_sync(kTurn + warpgroup, 256);
  }
  __device__ __forceinline__ void pass_turn() {
    if constexpr (Config::kPingPong) ptx::named_arrive(kTurn + (warpgroup + 1 == kWarpgroups ? 0 : warpgroup + 1), 256);
  }
  // After wgmma_wait one thread may speak for its warpgroup.
  __device__ __forceinline__ void release(uint64_t* barrier) {
    if (thread == 0) ptx::barrier_arrive(barrier);
  }

  __device__ __forceinline__ void issue_scores() {
    int const q_offset = q.stage * kWarpgroups * T::Q::kBytes, offset = k.stage * T::K::kBytes;
    wgmma_hold(scores);
    wgmma_fence();
    CUTE_UNROLL
    for (int step = 0; step < T::kStepsQK; ++step)
      Wgmma<Element, kBlockN>::ss(scores, q_tiles.at(q_offset + T::Q::k_major_step(step)), k_tiles.at(offset + T::K::k_major_step(step)), step > 0);
    wgmma_commit();
  }
  __device__ __forceinline__ void issue_output() {
    int const offset = v.stage * T::V::kBytes;
    wgmma_hold(acc);
    wgmma_hold(p);
    wgmma_fence();
    CUTE_UNROLL
    for (int step = 0; step < kBlockN / 16; ++step) {
      Wgmma<Element, Config::kHeadDimV>::template rs<Major::kMN>(acc, p[4 * step], p[4 * step + 1], p[4 * step + 2], p[4 * step + 3],
                                                                  v_tiles.at(offset + T::V::mn_major_step(step)), accumulate);
      accumulate = 1;
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void await_k() { ptx::barrier_wait(&smem.k_full[k.stage], k.phase); }
  __device__ __forceinline__ void await_v() { ptx::barrier_wait(&smem.v_full[v.stage], v.phase); }
  __device__ __forceinline__ void release_k() { release(&smem.k_empty[k.stage]), k.advance(); }
  __device__ __forceinline__ void release_v() { release(&smem.v_empty[v.stage]), v.advance(); }
  // A block that only other warpgroups see: no product, but a turn and a release. NOTE: all threads have waited before one of them releases.
  __device__ __forceinline__ void skip_k() {
    await_turn(), pass_turn();
    await_k();
    ptx::named_sync(kOwn + warpgroup, 128);
    release_k();
  }
  __device__ __forceinline__ void skip_v() {
    await_v();
    ptx::named_sync(kOwn + warpgroup, 128);
    release_v();
  }

  __device__ __forceinline__ void mask(int first_row, int block) {
    CUTE_UNROLL
    for (int h = 0; h < 2; ++h) {
      int const end = Mask::end_key(params, first_row + 8 * h) - block * kBlockN - thread % 4 * 2;
      CUTE_UNROLL
      for (int i = 0; i < kBlockN / 4; ++i)
        if (i / 2 * 8 + i % 2 >= end) scores[i / 2 * 4 + 2 * h + i % 2] = negative_infinity();
    }
  }
  __device__ __forceinline__ void convert() {
    CUTE_UNROLL
    for (int i = 0; i < kBlockN / 4; ++i) p[i] = ptx::pack<Element>(scores[2 * i], scores[2 * i + 1]);
  }
  __device__ __forceinline__ void rescale() {
    if (Config::kLazyRescale && !softmax.raised) return;
    CUTE_UNROLL
    for (int i = 0; i < Config::kHeadDimV / 2; ++i) acc[i] *= softmax.rescale[i / 2 % 2];
  }

  // A block's P from its scores; lazy: in p already, else in scores.
  template <bool kMasked>
  __device__ __forceinline__ void probabilities(int first_row, int block) {
    if constexpr (kMasked) mask(first_row, block);
    if constexpr (Config::kLazyRescale) softmax.template update_lazily<Element, kMasked>(scores, p, params.scale_log2);
    else softmax.template update<false, kMasked>(scores, params.scale_log2);
  }

  // One block after the first: its scores, and the output of the block before it.
  template <bool kMasked>
  __device__ __forceinline__ void step(int first_row, int block) {
    await_k();
    if constexpr (Config::kOverlap) {
      await_turn();
      issue_scores();
      if constexpr (Config::kRescaleEarly) rescale();  // while S is computed; else after O's product, while the other warpgroup computes
      await_v();
      issue_output();
    } else {
      await_v();
      await_turn();
      issue_output();
      issue_scores();
    }
    pass_turn();
    if constexpr (Config::kOverlap && !Config::kLazyRescale) {
      wgmma_wait<1>();
      wgmma_hold(scores);
      release_k();
      probabilities<kMasked>(first_row, block);
      wgmma_wait<0>();
      wgmma_hold(acc);
      release_v();
    } else {  // lazy: P is packed at once, into the registers that O's product reads
      wgmma_wait<0>();
      wgmma_hold(acc);
      wgmma_hold(scores);
      release_k();
      release_v();
      probabilities<kMasked>(first_row, block);
    }
    if constexpr (!(Config::kOverlap && Config::kRescaleEarly)) rescale();
    if constexpr (!Config::kLazyRescale) convert();
  }

  // Of the tile's blocks those that this warpgroup computes: at least one, even if its rows do not see it or do not exist.
  __device__ __forceinline__ BlockRange own_blocks(int m_block, BlockRange const& blocks) const {
    if constexpr (skips()) {
      int const first_row = Mask::template first_row<kBlockM>(params, m_block) + warpgroup * 64;
      BlockRange const own = Mask::template blocks<64, kBlockN>(params, first_row);
      return {Mask::template has_rows<64>(params, first_row) ? max(own.end, 1) : 1, own.full};
    } else {
      return blocks;
    }
  }

  // Issues the first scores of a tile.
  __device__ __forceinline__ void start(int m_block, BlockRange const& blocks) {
    if constexpr (skips()) {
      int const skipped = blocks.end - own_blocks(m_block, blocks).end;
      for (int i = 0; i < skipped; ++i) {
        skip_k();
        if (i > 0) skip_v();  // V lags K by a block, as the producer loads it
      }
    }
    ptx::barrier_wait(&smem.q_full[q.stage * kWarpgroups + warpgroup], q.phase);
    await_k();
    await_turn();
    issue_scores();
    pass_turn();
  }
  __device__ __forceinline__ void finish_scores() {
    wgmma_wait<0>();
    wgmma_hold(scores);
    release_k();
  }

  // From a tile's first scores to its output, not yet normalised.
  __device__ __forceinline__ void compute(int m_block, BlockRange const& blocks) {
    int const first_row = Mask::template first_row<kBlockM>(params, m_block) + warpgroup * 64 + thread / 32 * 16 + thread % 32 / 4;
    BlockRange const own = own_blocks(m_block, blocks);
    if (skips() && own.end < blocks.end) skip_v();
    int block = own.end - 1;
    if (block >= own.full) mask(first_row, block);
    softmax.template update<true, true>(scores, params.scale_log2);
    convert();
    accumulate = 0;
    --block;
    CUTE_NO_UNROLL
    for (; block >= max(own.full, 0); --block) step<true>(first_row, block);
    CUTE_NO_UNROLL
    for (; block >= 0; --block) step<false>(first_row, block);
    release(&smem.q_empty[q.stage * kWarpgroups + warpgroup]);
    q.advance();
    if constexpr (Config::kRescaleEarly && Config::kOverlap) rescale();
    await_v();
    issue_output();
    softmax.finish();
    wgmma_wait<0>();
    wgmma_hold(acc);
    release_v();
  }

  // The published tile of a slot, once it is there; its key blocks.
  __device__ __forceinline__ BlockRange await_tile(PipelineState<2> const& slot) {
    ptx::barrier_wait(&smem.tile_full[slot.stage], slot.phase);
    return Mask::template blocks<kBlockM, kBlockN>(params, Mask::template first_row<kBlockM>(params, smem.tile[slot.stage].m_block));
  }

  __device__ __forceinline__ void run() {
    if constexpr (Config::kPingPong) {
      if (warpgroup == kWarpgroups - 1) ptx::named_arrive(kTurn, 256);  // the first turn is warpgroup 0's
    }
    PipelineState<2> slot;
    BlockRange blocks = await_tile(slot);
    bool started = false;  // whether the tile's first scores are there already
    while (smem.tile[slot.stage].m_block >= 0) {
      TileCoordinate const& at = smem.tile[slot.stage];  // read again where it is needed: registers are scarce in between
      PipelineState<2> next = slot;
      next.advance();
      if (Mask::kUnevenRows && blocks.end <= 0) {
        Epilogue<Config>::store_empty(params, at, warpgroup, thread);
        blocks = await_tile(next);
        started = false;
      } else {
        if (!started) {
          start(at.m_block, blocks);
          finish_scores();
        }
        compute(at.m_block, blocks);
        if constexpr (Config::kEarlyStart) {
          blocks = await_tile(next);
          started = smem.tile[next.stage].m_block >= 0 && !(Mask::kUnevenRows && blocks.end <= 0);
        }
        if (started) {  // the next tile's first scores are computed while this tile's output is stored
          start(smem.tile[next.stage].m_block, blocks);
          Epilogue<Config>::run(params, smem, at, warpgroup, thread, acc, softmax);
          finish_scores();
        } else {
          Epilogue<Config>::run(params, smem, at, warpgroup, thread, acc, softmax);
          if constexpr (!Config::kEarlyStart) blocks = await_tile(next);
        }
      }
      ptx::barrier_arrive(&smem.tile_empty[slot.stage]);
      slot = next;
    }
    if constexpr (Config::kPingPong) {
      if (warpgroup == 0) ptx::named_sync(kTurn, 256);  // the turn nobody took
    }
    if constexpr (Config::kOutputTile) {
      if (thread == 0) ptx::store_wait_read();  // shared memory must outlive the last store
    }
  }
};

}  // namespace flashgen::fa3
