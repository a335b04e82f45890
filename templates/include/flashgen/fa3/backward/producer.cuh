#pragma once
// One thread that feeds the consumers by bulk copies: K and V once, unless key_producer.cuh does, then for every block of query rows Q with its
// LSE, dO with its dpsum.
#include <flashgen/fa3/backward/key_tile.cuh>
#include <flashgen/fa3/backward/smem.cuh>

namespace flashgen::fa3::backward {

template <class Config>
struct Producer {
  using T = Tiles<Config>;
  static constexpr int kM = Config::kBlockM, kRowBytes = kM * 4;

  template <class Tile>
  __device__ __forceinline__ static void load(TensorMap const& map, uint64_t* full, char* to, ptx::CacheHint hint, int row, int head, int batch) {
    CUTE_NO_UNROLL  // registers are scarcer here than instructions
    for (int chunk = 0; chunk < Tile::kChunks; ++chunk)
      ptx::tensor_load(map, full, to + chunk * Tile::kChunkBytes, hint, chunk * Tile::kWidth, row, head, batch);
  }

  __device__ __forceinline__ static void run(BackwardParams const& params, Smem<Config>& smem) {
    Step step;
    for_each_tile(params, smem, [&](KeyTile<Config> const& tile) { load_all(params, smem, tile, step); });
  }

  __device__ __forceinline__ static void load_all(BackwardParams const& params, Smem<Config>& smem, KeyTile<Config> const& tile, Step& step) {
    if constexpr (!Config::kPersistent) {
      if (tile.is_seen(params)) {
        int const key = tile.n_block * Config::kBlockN;
        ptx::barrier_arrive_expect(&smem.keys.full, T::K::kBytes + T::V::kBytes);
        load<typename T::K>(params.k, &smem.keys.full, smem.k, ptx::CacheHint::kEvictFirst, key, tile.head_kv, tile.batch);
        load<typename T::V>(params.v, &smem.keys.full, smem.v, ptx::CacheHint::kEvictFirst, key, tile.head_kv, tile.batch);
      }
    }
    tile.for_each_m_block(params, [&](int head, int m_block) {
      int64_t const row = tile.m_tile(params, head, m_block) * kM;
      int const q = step.stage<Config::kStagesQ>(), dout = step.stage<Config::kStagesDo>();
      ptx::barrier_wait(&smem.q_empty[q], step.phase<Config::kStagesQ>() ^ 1);
      ptx::barrier_arrive_expect(&smem.q_full[q], T::Q::kBytes + kRowBytes);
      load<typename T::Q>(params.q, &smem.q_full[q], smem.q + q * T::Q::kBytes, ptx::CacheHint::kEvictLast, m_block * kM, head, tile.batch);
      ptx::row_load(params.lse_log2 + row, &smem.q_full[q], smem.lse[q], kRowBytes);
      ptx::barrier_wait(&smem.do_empty[dout], step.phase<Config::kStagesDo>() ^ 1);
      ptx::barrier_arrive_expect(&smem.do_full[dout], T::Dout::kBytes + kRowBytes);
      load<typename T::Dout>(params.dout, &smem.do_full[dout], smem.dout + dout * T::Dout::kBytes, ptx::CacheHint::kEvictLast, m_block * kM, head, tile.batch);
      ptx::row_load(params.dpsum + row, &smem.do_full[dout], smem.dpsum[dout], kRowBytes);
      ++step.index;
    });
  }
};

}  // namespace flashgen::fa3::backward
