// The statistics that a lens requests of a forward pass. All results are contiguous; those not requested are null.
#pragma once

#include "attention/problem.h"

namespace limelight {

// Statistics of each query, computed in the pass over its scores. All shapes start with b h i.
struct RowStats {
  float* max_score = nullptr;
  float* entropy = nullptr;
  float* distance = nullptr;
  float* band = nullptr;
  int64_t band_reach = 0;
  float* columns = nullptr;  // b h i column_count
  const int64_t* column_keys = nullptr;
  int64_t column_count = 0;
  float* top = nullptr;  // b h i top_count: the largest weights, and top_keys their keys
  int64_t* top_keys = nullptr;
  int64_t top_count = 0;
};

// Statistics of keys and map cells, computed from final weights. Sums are float64 and added to the tensors'
// content.
struct PooledStats {
  const int64_t* pieces = nullptr;  // piece_count + 1 bounds that divide the queries at edges of rows of cells
  int64_t piece_count = 0;          // 0: no pooled statistics
  const float* norms = nullptr;     // b g j: ‖v_j‖, for top
  double* received = nullptr;       // b h piece_count j
  int64_t rows = 1, columns = 1;    // of cells in the map
  double* map_sum = nullptr;        // b h rows columns
  float* map_max = nullptr;         // b h rows columns
  float* top = nullptr;             // b h i top_count: the largest ‖weight · value‖, and top_keys their keys
  int64_t* top_keys = nullptr;
  int64_t top_count = 0;
};

struct LensForward {
  Forward forward;
  RowStats row_stats;
  PooledStats pooled_stats;
};

}  // namespace limelight
