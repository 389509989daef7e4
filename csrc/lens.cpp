// The second sweep of a lens: with the log-sum-exp known, every tile of scores
// is at once a tile of final weights, whose columns can be summed and pooled.
#include "lens.h"
#include "kernels.h"
#include "threads.h"
#include "tile.h"

namespace limelight::LIMELIGHT_ISA {
namespace {

constexpr int64_t kTileRows = 48;   // queries of a tile
constexpr int64_t kTileKeys = 256;  // keys of a tile, packed once for a block of queries
constexpr int64_t kScoreStride =
    kTileKeys + NR;                   // a row of scores; not a power of two, which would crowd the cache
constexpr int64_t kBlockRows = 2048;  // queries that are packed at once

// Sums and maxima over the queries of one row of cells, for one tile of keys.
struct Columns {
  float sum[kTileKeys], max[kTileKeys];

  void clear() {
    for (int64_t t = 0; t < kTileKeys; ++t) sum[t] = max[t] = 0;
  }

  // Adds R rows of scores as weights 2^(score − base).
  template <int R>
  LIMELIGHT_INLINE void add(const float* scores, const float* base, int64_t count) {
    for (int64_t t = 0; t < count; t += W) {
      vf total = load(sum + t), most = load(max + t);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const vf weight = exp2(load(scores + r * kScoreStride + t) - base[r]);
        total += weight;
        most = larger(weight, most);
      }
      store(sum + t, total);
      store(max + t, most);
    }
  }
};

class Job {
 public:
  Job(const Survey& call, int64_t b, int64_t h, int64_t piece)
      : call_(call),
        p_(call.problem),
        b_(b),
        h_(h),
        piece_(piece),
        rows_{call.pieces[piece], call.pieces[piece + 1]} {
    const int64_t block = smaller(kBlockRows, rows_.high - rows_.low);
    float* at = scratch(static_cast<size_t>(kTileKeys * p_.d() + kTileRows * kScoreStride +
                                            round_up(block, MR) * p_.d() + kBlockSpill));
    key_ = at, at += kTileKeys * p_.d();
    scores_ = at, at += kTileRows * kScoreStride;
    query_ = at;
  }

  void run() {
    if (call_.top)
      for (int64_t i = rows_.low; i < rows_.high; ++i) best(i).clear(0);
    for (int64_t i = rows_.low; i < rows_.high; i += kBlockRows) {
      if (interrupted()) return;
      block(i, smaller(i + kBlockRows, rows_.high));
    }
  }

 private:
  void block(int64_t i0, int64_t i1) {
    with_type(p_.query.dtype, [&](auto* type) {
      const auto* from = static_cast<decltype(type)>(p_.query.data) + p_.query.at(b_, h_, i0);
      pack_blocks(from, p_.query.stride[2], i1 - i0, p_.d(), query_factor(p_), query_);
    });
    Range keys{0, p_.j()};
    if (p_.mask) keys = key_range(*p_.mask.nodes, extent(), i0, i1);
    for (int64_t j0 = keys.low; j0 < keys.high && !interrupted(); j0 += kTileKeys) {
      packed_ = false;
      cell_ = -1;
      columns_.clear();
      for (int64_t i = i0; i < i1; i += kTileRows)
        visit({i, smaller(i + kTileRows, i1), j0, smaller(j0 + kTileKeys, keys.high)}, i0);
      flush(j0, smaller(kTileKeys, keys.high - j0));
    }
  }

  void visit(const Tile& tile, int64_t i0) {
    Cover cover = Cover::all;
    if (p_.mask) cover = LIMELIGHT_ISA::cover(*p_.mask.nodes, extent(), tile);
    if (cover == Cover::none) return;
    const int64_t count = tile.j1 - tile.j0, rows = tile.i1 - tile.i0;
    if (!packed_) pack(tile.j0, count);
    product<Left::columns>(rows, round_up(count, NR), p_.d(),
                           in_packed_blocks(query_ + (tile.i0 - i0) * p_.d(), p_.d()), in_panels(key_, p_.d()),
                           Set{scores_, kScoreStride});
    float base[kTileRows];
    for (int64_t r = 0; r < rows; ++r) {
      float* row = scores_ + r * kScoreStride;
      const int64_t i = tile.i0 + r;
      if (adjusts(p_)) adjust_row(p_, b_, h_, i, tile.j0, count, row);
      for (int64_t t = count; t % W; ++t) row[t] = -__builtin_inff();
      if (cover == Cover::some) {
        uint64_t words[kTileKeys / kWordKeys];
        row_bits(*p_.mask.nodes, extent(), i, tile.j0, count, words);
        forbid(row, words, count);
      }
      const float lse = call_.lse[place(i)];
      base[r] = lse == -__builtin_inff() ? 0 : lse * static_cast<float>(kLog2E);
    }
    add_columns(tile, base, count);
    if (call_.top)
      for (int64_t r = 0; r < rows; ++r) offer(tile, r, base[r], count);
  }

  void pack(int64_t j0, int64_t count) {
    with_type(p_.key.dtype, [&](auto* type) {
      const auto* from = static_cast<decltype(type)>(p_.key.data) + p_.key.at(b_, h_ / p_.group(), j0);
      pack_panels(from, p_.key.stride[2], count, p_.d(), key_);
    });
    packed_ = true;
  }

  // Runs of rows that lie in one row of cells go into the columns; a new row of
  // cells empties them.
  void add_columns(const Tile& tile, const float* base, int64_t count) {
    for (int64_t i = tile.i0; i < tile.i1;) {
      const int64_t cell = cell_of(i), end = smaller(tile.i1, cell_start(cell + 1, call_.rows, p_.i()));
      if (cell != cell_ && cell_ >= 0) flush(tile.j0, count);
      cell_ = cell;
      int64_t r = i - tile.i0;
      for (; r + 4 <= end - tile.i0; r += 4) columns_.add<4>(scores_ + r * kScoreStride, base + r, count);
      for (; r < end - tile.i0; ++r) columns_.add<1>(scores_ + r * kScoreStride, base + r, count);
      i = end;
    }
  }

  // Gives the gathered columns to the key sums and the cells they belong to.
  void flush(int64_t j0, int64_t count) {
    if (cell_ < 0) return;
    const int64_t head = b_ * p_.h() + h_;
    if (call_.received) {
      double* to = call_.received + (head * call_.piece_count + piece_) * p_.j() + j0;
      for (int64_t t = 0; t < count; ++t) to[t] += columns_.sum[t];
    }
    if (call_.map_sum || call_.value_sum) {
      const float* norm = call_.norms ? call_.norms + (b_ * p_.g() + h_ / p_.group()) * p_.j() + j0 : nullptr;
      const int64_t line = (head * call_.rows + cell_) * call_.columns;
      for (int64_t t = 0; t < count;) {
        const int64_t c = (j0 + t) * call_.columns / p_.j();
        const int64_t end = smaller(count, cell_start(c + 1, call_.columns, p_.j()) - j0);
        if (call_.map_sum) pool(t, end, nullptr, call_.map_sum[line + c], call_.map_max[line + c]);
        if (call_.value_sum) pool(t, end, norm, call_.value_sum[line + c], call_.value_max[line + c]);
        t = end;
      }
    }
    columns_.clear();
  }

  void pool(int64_t t, int64_t end, const float* norm, double& sum, float& most) const {
    float total = 0;
    for (; t < end; ++t) {
      const float factor = norm ? norm[t] : 1;
      total += columns_.sum[t] * factor;
      const float here = columns_.max[t] * factor;
      if (here > most) most = here;
    }
    sum += total;
  }

  // A row's ‖weight · value‖ against its strongest so far.
  void offer(const Tile& tile, int64_t r, float base, int64_t count) {
    float* row = scores_ + r * kScoreStride;
    const float* norm = call_.norms + (b_ * p_.g() + h_ / p_.group()) * p_.j() + tile.j0;
    for (int64_t t = 0; t < count; t += W) store(row + t, exp2(load(row + t) - base));
    for (int64_t t = 0; t < count; ++t) row[t] *= norm[t];
    best(tile.i0 + r).offer(row, round_up(count, W), tile.j0);
  }

  int64_t place(int64_t i) const { return (b_ * p_.h() + h_) * p_.i() + i; }
  Best best(int64_t i) const {
    return {call_.top + place(i) * call_.top_count, call_.top_keys + place(i) * call_.top_count, call_.top_count};
  }
  Extent extent() const { return {b_, h_, p_.i(), p_.j()}; }
  int64_t cell_of(int64_t i) const { return i * call_.rows / p_.i(); }
  // Place x lies in cell ⌊x·cells/size⌋.
  static int64_t cell_start(int64_t cell, int64_t cells, int64_t size) {
    return (cell * size + cells - 1) / cells;
  }

  const Survey& call_;
  const Problem& p_;
  int64_t b_, h_, piece_;
  Range rows_;
  Columns columns_;
  int64_t cell_ = -1;  // the row of cells that columns_ holds; −1: none yet
  bool packed_ = false;
  float *key_, *scores_, *query_;
};

}  // namespace

bool survey(const Survey& call) {
  const Problem& p = call.problem;
  const int64_t jobs = p.b() * p.h() * call.piece_count;
  if (jobs == 0 || p.i() == 0 || p.j() == 0) return true;
  return parallel(jobs, thread_limit(), [&](int64_t job, int) {
    const int64_t head = job % (p.b() * p.h()), piece = call.piece_count - 1 - job / (p.b() * p.h());
    Job(call, head / p.h(), head % p.h(), piece).run();
  });
}

}  // namespace limelight::LIMELIGHT_ISA
