// What a lens asks of a forward pass. Results that are absent are null; all are contiguous.
#pragma once

#include "attention/problem.h"

namespace limelight {

// Statistics of a query, computed while its scores pass by. All start with b h i.
struct RowStats {
  float* max_score = nullptr;
  float* entropy = nullptr;
  float* distance = nullptr;
  float* band = nullptr;
  int64_t band_reach = 0;
  float* columns = nullptr;  // b h i column_count
  const int64_t* column_keys = nullptr;
  int64_t column_count = 0;
  float* top = nullptr;  // b h i top_count, weights; top_keys likewise
  int64_t* top_keys = nullptr;
  int64_t top_count = 0;
};

// Statistics of keys and cells, computed from final weights. Sums are float64, added to what is there.
struct PooledStats {
  const int64_t* pieces = nullptr;  // piece_count + 1 cuts of the queries, at edges of rows of cells: jobs
  int64_t piece_count = 0;          // 0: nothing is asked
  const float* norms = nullptr;     // b g j: ‖v_j‖, for top
  double* received = nullptr;       // b h piece_count j
  int64_t rows = 1, columns = 1;    // cells of the map
  double* map_sum = nullptr;        // b h rows columns
  float* map_max = nullptr;         // b h rows columns
  float* top = nullptr;             // b h i top_count: ‖weight · value‖; top_keys likewise
  int64_t* top_keys = nullptr;
  int64_t top_count = 0;
};

struct LensForward {
  Forward forward;
  RowStats row_stats;
  PooledStats pooled_stats;
};

}  // namespace limelight
