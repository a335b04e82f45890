#pragma once
// Which tile a block computes next. The producer asks and publishes the answer in shared memory; consumers only read it.
#include <flashgen/attention/params.h>

namespace flashgen {

// Where a tile lies: M query rows from Mask::first_row(m_block) on, of one head of one batch. m_block < 0: there is none left.
struct alignas(16) TileCoordinate {
  int m_block, head, batch, padding;
};

// Tiles of equal length: all row blocks of a head, then the next head, so that neighbours share K and V in L2.
struct HeadByHead {
  __device__ __forceinline__ static TileCoordinate locate(ForwardParams const& params, int tile) {
    int const row_of_heads = tile / params.m_blocks, batch = row_of_heads / params.heads_q;
    return {tile - row_of_heads * params.m_blocks, row_of_heads - batch * params.heads_q, batch, 0};
  }
};

// Tiles whose length grows with the row block. First the longer ones: within a group of heads that fits in L2 the longest first, heads fastest
// (longest-processing-time order; FlashAttention-3's scheduler does the same). Then the short ones of all heads, again the longest first: they
// fill the ends, so that groups may be as small as L2 wants them. A quarter of the row blocks holds a sixteenth of the work.
struct LongestFirst {
  __device__ __forceinline__ static TileCoordinate locate(ForwardParams const& params, int tile) {
    int const heads = params.batch * params.heads_q, short_blocks = params.m_blocks < 8 ? 0 : params.m_blocks / 4, long_blocks = params.m_blocks - short_blocks;
    int head, m_block;
    if (tile < long_blocks * heads) {
      int const tiles_per_group = long_blocks * params.heads_per_group;
      int const group = tile / tiles_per_group, in_group = tile - group * tiles_per_group, first = group * params.heads_per_group;
      int const width = min(params.heads_per_group, heads - first), level = in_group / width;
      head = first + in_group - level * width;
      m_block = params.m_blocks - 1 - level;
    } else {
      int const rest = tile - long_blocks * heads, level = rest / heads;
      head = rest - level * heads;
      m_block = short_blocks - 1 - level;
    }
    int const batch = head / params.heads_q;
    return {m_block, head - batch * params.heads_q, batch, 0};
  }
};

// One tile a block.
struct SingleTileScheduler {
  __device__ __forceinline__ static int next(ForwardParams const& params, int) { return params.tiles; }
  __device__ __forceinline__ static void finish(ForwardParams const&) {}
};

// As many blocks as multiprocessors, tiles dealt out in turn.
struct StaticPersistentScheduler {
  __device__ __forceinline__ static int next(ForwardParams const&, int tile) { return tile + static_cast<int>(gridDim.x); }
  __device__ __forceinline__ static void finish(ForwardParams const&) {}
};

// As many blocks as multiprocessors, a block that is free takes the next tile.
struct DynamicPersistentScheduler {
  __device__ __forceinline__ static int next(ForwardParams const& params, int) {
    return atomicAdd(params.tile_counter, 1) + static_cast<int>(gridDim.x);
  }
  // The last block to run dry leaves the counters at zero for the next launch: no memset before it.
  __device__ __forceinline__ static void finish(ForwardParams const& params) {
    if (atomicAdd(params.tile_counter + 1, 1) == static_cast<int>(gridDim.x) - 1) {
      params.tile_counter[0] = 0;
      params.tile_counter[1] = 0;
    }
  }
};

}  // namespace flashgen
