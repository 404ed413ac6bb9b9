#include "core/control/device_texts.h"

#include "tests/catch.h"
#include "tests/unit/control_fixture.h"

namespace safetensorfs {

TEST_CASE("Slabs are named by decimal numbers below 2^40, spelled in one way") {
  CHECK(ParseSlabName("0") == 0u);
  CHECK(ParseSlabName("7") == 7u);
  CHECK(ParseSlabName("1099511627775") == (std::uint64_t{1} << 40) - 1);
  for (const char* name : {"", "00", "07", "+7", "-7", " 7", "7 ", "0x7", "7.json", "1099511627776",
                           "18446744073709551616", "\xD9\xA7"}) {
    CHECK_FALSE(ParseSlabName(name));
  }
}

TEST_CASE("A device tells its product and what it knows of its memory") {
  ControlFixture fixture;
  CHECK(fixture.host("slow").InfoText(0) ==
        R"({"name":"slow","product":"Test \"1\"","total_nbytes":0,"free_nbytes":null,)"
        R"("loaded_tensors":0,"loaded_nbytes":0,"held_nbytes":0,"leases":0})");
  CHECK(InfoText(*fixture.slow, {12, 1234}, 3, "lost 1 tensor") ==
        R"({"name":"slow","product":"Test \"1\"","total_nbytes":0,"free_nbytes":null,)"
        R"("loaded_tensors":12,"loaded_nbytes":1234,"held_nbytes":0,"leases":3,)"
        R"("last_failure":"lost 1 tensor"})");
}

TEST_CASE("A handle tells how to attach to a tensor, a slab to all in it") {
  ControlFixture fixture;
  const Checkpoint& checkpoint = *fixture.source->checkpoints[0].checkpoint;
  CHECK(HandleText(*fixture.slow, checkpoint, {17, 0, 2}) ==
        R"({"version":1,"device":"slow","name":"h.2","dtype":"U8","shape":[2],"nbytes":2,)"
        R"("generation":17,"export":"test"})"
        "\n");
  CHECK(SlabText(*fixture.slow, checkpoint, 5, {{{3, 0}, {1, 512}}, R"("key":"ab")"}) ==
        R"({"version":1,"device":"slow","generation":5,"key":"ab","tensors":[)"
        R"({"name":"h.3","dtype":"U8","shape":[2],"nbytes":2,"offset":0},)"
        R"({"name":"h.1","dtype":"U8","shape":[2],"nbytes":2,"offset":512}]})"
        "\n");
}

}  // namespace safetensorfs
