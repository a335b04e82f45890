#pragma once
// Which tile a block computes next. The producer asks and publishes the answer in shared memory; consumers only read it.
#include <flashgen/attention/params.h>

namespace flashgen {

// Where a tile lies: query rows [m_block * M, ...) of one head of one batch. m_block < 0: there is none left.
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

// Tiles whose length grows with the row block: within a group of heads that fits in L2 the longest first, heads fastest
// (longest-processing-time order; FlashAttention-3's scheduler does the same).
struct LongestFirst {
  __device__ __forceinline__ static TileCoordinate locate(ForwardParams const& params, int tile) {
    int const tiles_per_group = params.m_blocks * params.heads_per_group;
    int const group = tile / tiles_per_group, in_group = tile - group * tiles_per_group, first = group * params.heads_per_group;
    int const width = min(params.heads_per_group, params.batch * params.heads_q - first);
    int const level = in_group / width, head_of_batches = first + in_group - level * width, batch = head_of_batches / params.heads_q;
    return {params.m_blocks - 1 - level, head_of_batches - batch * params.heads_q, batch, 0};
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
