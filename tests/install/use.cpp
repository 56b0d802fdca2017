// SPDX-License-Identifier: MIT
// A user's program, in C++: the library's functions have C linkage, and a wrong call is answered with a sentence.
#include <cstdio>
#include <string>
#include <vector>
#include <tegula/tegula.h>

int main()
{
    std::vector<float> x{ 1, 2, 3, 4, 5, 6 }, out(6);
    std::int64_t x_shape[] = { 2, 3 }, out_shape[] = { 3, 2 };
    DLTensor from{ x.data(), { kDLCPU, 0 }, 2, { TGL_DL_FLOAT, 32, 1 }, x_shape, nullptr, 0 };
    DLTensor to{ out.data(), { kDLCPU, 0 }, 2, { TGL_DL_FLOAT, 32, 1 }, out_shape, nullptr, 0 };

    if (tgl_transpose(&from, &to, nullptr) != TGL_OK) return 1;
    if (out != std::vector<float>{ 1, 4, 2, 5, 3, 6 }) return 2;
    to.shape = x_shape;
    if (tgl_transpose(&from, &to, nullptr) != TGL_ERR_ARGUMENT) return 3;
    std::printf("C++, tegula %s: %s\n", tgl_version(), tgl_last_error());
    return std::string(tgl_last_error()).find("out: shape is [2, 3]") == 0 ? 0 : 4;
}
