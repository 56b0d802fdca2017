/* SPDX-License-Identifier: MIT */
#include "core/dtype.h"

#include "test.h"

/* DLPack's codes, as its header gives them. */
static const struct {
    tgl_dtype dtype;
    const char *name;
    int code, bits, lanes;
} known[] = {
    { TGL_BOOL, "bool", 6, 8, 1 },      { TGL_I8, "i8", 0, 8, 1 },      { TGL_I16, "i16", 0, 16, 1 },
    { TGL_I32, "i32", 0, 32, 1 },       { TGL_I64, "i64", 0, 64, 1 },   { TGL_U8, "u8", 1, 8, 1 },
    { TGL_U16, "u16", 1, 16, 1 },       { TGL_U32, "u32", 1, 32, 1 },   { TGL_U64, "u64", 1, 64, 1 },
    { TGL_F16, "f16", 2, 16, 1 },       { TGL_BF16, "bf16", 4, 16, 1 }, { TGL_F32, "f32", 2, 32, 1 },
    { TGL_F64, "f64", 2, 64, 1 },       { TGL_C64, "c64", 5, 64, 1 },   { TGL_C128, "c128", 5, 128, 1 },
    { TGL_E4M3, "e4m3", 10, 8, 1 },     { TGL_E5M2, "e5m2", 12, 8, 1 }, { TGL_UE8M0, "ue8m0", 14, 8, 1 },
    { TGL_E2M1X2, "e2m1x2", 17, 4, 2 },
};
enum { NUM_KNOWN = sizeof known / sizeof *known };

TEST(known_dtypes)
{
    tgl_dtype all = 0;
    for (int i = 0; i < NUM_KNOWN; i++) {
        const DLDataType d = tgl_dtype_to_dlpack(known[i].dtype);
        CHECK_THAT(d.code == known[i].code && d.bits == known[i].bits && d.lanes == known[i].lanes,
                   "%s is code %d with %d bits and %d lanes", known[i].name, d.code, d.bits, d.lanes);
        CHECK_INT(tgl_dtype_of(d), known[i].dtype);
        CHECK_INT(tgl_dtype_bits(d), known[i].bits * known[i].lanes);
        CHECK_TEXT(tgl_dtype_name(known[i].dtype), known[i].name);
        CHECK_INT(tgl_dtype_named(known[i].name), known[i].dtype);
        CHECK((known[i].dtype & (known[i].dtype - 1)) == 0 && !(all & known[i].dtype));
        all |= known[i].dtype;
    }
    CHECK_INT(all | TGL_OTHER, TGL_ANY); /* and no bit of TGL_ANY is anything else */
}

TEST(every_code_and_width)
{
    for (int code = 0; code < 256; code++)
        for (int bits = 0; bits < 256; bits++)
            for (int lanes = 0; lanes <= 16; lanes++) {
                const DLDataType d = { (uint8_t)code, (uint8_t)bits, (uint16_t)lanes };
                const int width = bits * lanes;
                tgl_dtype want = 0;
                if (width == 8 || width == 16 || width == 32 || width == 64 || width == 128) want = TGL_OTHER;
                for (int i = 0; i < NUM_KNOWN; i++)
                    if (known[i].code == code && known[i].bits == bits && known[i].lanes == lanes)
                        want = known[i].dtype;
                if (tgl_dtype_of(d) != want)
                    CHECK_THAT(false, "code %d with %d bits and %d lanes is %u, want %u", code, bits, lanes,
                               tgl_dtype_of(d), want);
                const tgl_dtype sets[] = {
                    TGL_ANY, want, TGL_ANY & ~want, TGL_F32 | TGL_E2M1X2, TGL_BOOL | TGL_OTHER, 0
                };
                for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
                    if (tgl_dtype_is(d, sets[i]) != ((want & sets[i]) != 0))
                        CHECK_THAT(false, "code %d with %d bits and %d lanes in set %x", code, bits, lanes, sets[i]);
            }
    CHECK_INT(tgl_dtype_of((DLDataType){ 2, 255, 65535 }), 0);
    CHECK_INT(tgl_dtype_bits((DLDataType){ 2, 255, 65535 }), 255 * 65535);
}

TEST(no_dtype)
{
    CHECK(!tgl_dtype_name(0) && !tgl_dtype_name(TGL_OTHER) && !tgl_dtype_name(TGL_ANY) &&
          !tgl_dtype_name(TGL_F32 | TGL_BF16));
    CHECK_INT(tgl_dtype_named(""), 0);
    CHECK_INT(tgl_dtype_named("float32"), 0);
    CHECK_INT(tgl_dtype_named("bf1"), 0);
    CHECK_INT(tgl_dtype_named("bf166"), 0);
    CHECK_INT(tgl_dtype_to_dlpack(TGL_F32 | TGL_F64).bits, 0);
    CHECK_INT(tgl_dtype_to_dlpack(0).bits, 0);
}
