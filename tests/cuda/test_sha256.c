/* SPDX-License-Identifier: MIT
 * SHA-256 against the vectors that NIST publishes with FIPS 180-4. */
#include "cuda/sha256.h"

#include "test.h"

static const char *hex_of(const void *data, size_t bytes, size_t piece)
{
    static char hex[65];
    uint8_t digest[32];
    tgl_sha256 s;
    tgl_sha256_begin(&s);
    for (size_t at = 0; at < bytes; at += piece)
        tgl_sha256_add(&s, (const char *)data + at, bytes - at < piece ? bytes - at : piece);
    tgl_sha256_end(&s, digest);
    for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    return hex;
}

TEST(published_vectors)
{
    static const struct {
        const char *text, *digest;
    } rows[] = {
        { "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
        { "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
        { "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
        { "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmn"
          "opqrstnopqrstu",
          "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (size_t piece = 1; piece <= 70; piece++)
            CHECK_TEXT(hex_of(rows[i].text, strlen(rows[i].text), piece), rows[i].digest);
}

TEST(a_million_letters)
{
    static char text[1000000];
    memset(text, 'a', sizeof text);
    static const char digest[] = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
    CHECK_TEXT(hex_of(text, sizeof text, sizeof text), digest);
    CHECK_TEXT(hex_of(text, sizeof text, 63), digest);
    CHECK_TEXT(hex_of(text, sizeof text, 65), digest);
}

/* Lengths around the padding's corners: against digests made with coreutils' sha256sum, which shares no
 * code. */
TEST(lengths_around_a_block)
{
    static const struct {
        size_t bytes;
        const char *digest;
    } rows[] = {
        { 55, "5a383411d906da80612f366cb9b90ae54bcf6e7743b4117ace0884d98cd159ca" },
        { 56, "c66a5b692b9a20229733ef8b87cfec52679c86a0c0245643484c46d4dcd82afa" },
        { 57, "f7e927f23e3effb6bca2c32a1f94410002a69d21c0b506541c2a08a595be512d" },
        { 63, "85021e4907c21645631d596eee989bf43c2cd56b074175d5393804dbf1744412" },
        { 64, "72996563049cc84daa2c3f31fd5c3d10770e69d6ebbb8da5b6d76db303dbae43" },
        { 65, "57685f5e43ddac1567f4d404c357c44bab70744b8b6af6009760389170c5c062" },
        { 119, "de05957e72aca438f9b0c770cb2ee7fa0e58e08eb54536478db136d54c097abb" },
        { 120, "46a063da7dc0c878899dfc50adf2558256652c05dd1afc0b1341f7608c7a4776" },
        { 121, "f8665220c4f2751a62a68edf9691198cc8a66907f22567325494a5a647221a1b" },
        { 127, "87cdeb380917879fcd4c3b869ad644cbc7cbc6ff36b989cd4fe0f8123c13ca19" },
        { 128, "8169c725edd39f00140ffcf57c45b9c5143e2ffe375869e4cf2805342715d2b1" },
        { 129, "be5aab1a91c510a74cf7010cf9aba7d181268d499d81386950d365263b182203" },
    };
    char text[129];
    memset(text, 'z', sizeof text);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (size_t piece = 1; piece <= 129; piece += 8) CHECK_TEXT(hex_of(text, rows[i].bytes, piece), rows[i].digest);
}
