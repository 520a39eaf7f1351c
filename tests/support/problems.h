// Every problem of the plain operator at one width: types, weights, blocks, scale formats and layouts.
#pragma once

#include "problem/problem.h"

#include <cstdint>
#include <vector>

namespace nq::test {

inline std::vector<Problem> every_problem(std::uint32_t hidden) {
    std::vector<Problem> problems;
    for (const DType dtype : {DType::fp16, DType::bf16}) {
        for (const DType weight : {dtype, DType::fp32}) {
            for (const std::uint32_t block : {16u, 32u}) {
                if (hidden % block != 0) continue;
                for (const ScaleFormat format : {ScaleFormat::e4m3, ScaleFormat::ue8m0}) {
                    for (const ScaleLayout layout : {ScaleLayout::linear, ScaleLayout::swizzled}) {
                        Problem problem;
                        problem.hidden = hidden;
                        problem.dtype = dtype;
                        problem.weight_dtype = weight;
                        problem.block_size = block;
                        problem.scale_format = format;
                        problem.scale_layout = layout;
                        problems.push_back(problem);
                    }
                }
            }
        }
    }
    return problems;
}

}  // namespace nq::test
