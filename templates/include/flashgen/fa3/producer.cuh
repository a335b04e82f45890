#pragma once
// One thread that feeds the consumers: tiles, Q, K and V, by bulk tensor copies. V lags K by a block, as the consumers use it.
#include <flashgen/common/pipeline.cuh>
#include <flashgen/fa3/smem.cuh>

namespace flashgen::fa3 {

template <class Config>
struct Producer {
  using T = Tiles<Config>;
  using Mask = typename Config::Mask;
  using Scheduler = typename Config::Scheduler;
  using Order = cute::conditional_t<Mask::kUnevenRows, LongestFirst, HeadByHead>;
  using Stages = PipelineState<Config::kStages>;

  template <class Tile>
  __device__ __forceinline__ static void load(TensorMap const& map, uint64_t* full, char* to, ptx::CacheHint hint, int row, int head, int batch) {
    CUTE_UNROLL
    for (int chunk = 0; chunk < Tile::kChunks; ++chunk)
      ptx::tensor_load(map, full, to + chunk * Tile::kChunkBytes, hint, chunk * Tile::kWidth, row, head, batch);
  }

  // The next block of K or V, as soon as its stage is free. Keys are read again by every tile of the head: they should stay in L2.
  template <class Tile>
  __device__ __forceinline__ static void load_keys(TensorMap const& map, uint64_t* full, uint64_t* empty, char* stages, Stages& state, int block, int head,
                                                   int batch) {
    ptx::barrier_wait(&empty[state.stage], state.phase ^ 1);
    ptx::barrier_arrive_expect(&full[state.stage], Tile::kBytes);
    load<Tile>(map, &full[state.stage], stages + state.stage * Tile::kBytes, ptx::CacheHint::kEvictLast, block * Config::kBlockN, head, batch);
    state.advance();
  }

  __device__ __forceinline__ static void run(ForwardParams const& params, Smem<Config>& smem) {
    ptx::prefetch(params.q);
    ptx::prefetch(params.k);
    ptx::prefetch(params.v);
    ptx::prefetch(params.out);
    int const group = params.heads_q / params.heads_kv;
    Stages k, v;
    PipelineState<Config::kStagesQ> q;
    PipelineState<2> published;
    auto publish = [&](TileCoordinate const& tile) {
      ptx::barrier_wait(&smem.tile_empty[published.stage], published.phase ^ 1);
      smem.tile[published.stage] = tile;
      ptx::barrier_arrive(&smem.tile_full[published.stage]);
      published.advance();
    };

    for (int index = blockIdx.x; index < params.tiles;) {
      TileCoordinate const tile = Order::locate(params, index);
      publish(tile);
      int const next = Scheduler::next(params, index);  // asked for now, so that the answer is there when this tile's loads are issued
      int const head_kv = tile.head / group;
      auto first_row = [&] { return Mask::template first_row<Config::kBlockM>(params, tile.m_block); };
      int block = Mask::template blocks<Config::kBlockM, Config::kBlockN>(params, first_row()).end - 1;
      auto load_k = [&] { load_keys<typename T::K>(params.k, smem.k_full, smem.k_empty, smem.k, k, block, head_kv, tile.batch); };
      auto load_v = [&](int at) { load_keys<typename T::V>(params.v, smem.v_full, smem.v_empty, smem.v, v, at, head_kv, tile.batch); };
      if (block >= 0) {
        load_k();
        CUTE_UNROLL
        for (int w = 0; w < Config::kConsumerWarpgroups; ++w) {
          int const i = q.stage * Config::kConsumerWarpgroups + w;
          ptx::barrier_wait(&smem.q_empty[i], q.phase ^ 1);
          ptx::barrier_arrive_expect(&smem.q_full[i], T::Q::kBytes);
          load<typename T::Q>(params.q, &smem.q_full[i], smem.q + i * T::Q::kBytes, ptx::CacheHint::kEvictFirst, first_row() + w * 64, tile.head,
                              tile.batch);
        }
        q.advance();
        for (--block; block >= 0; --block) {
          load_k();
          load_v(block + 1);
        }
        load_v(0);
      }
      index = next;
    }
    publish({-1, 0, 0, 0});
    Scheduler::finish(params);
  }
};

}  // namespace flashgen::fa3
