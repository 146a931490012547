# preset_table.inc: XTuner's five configurations of DeepSpeed as rows of a C table, so that the program knows them by name.
function(strata_preset_table file)
  set(rows "")
  foreach(name deepspeed_zero1 deepspeed_zero2 deepspeed_zero2_offload deepspeed_zero3 deepspeed_zero3_offload)
    set(source ${PROJECT_SOURCE_DIR}/configs/xtuner/${name}.json)
    set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    file(READ ${source} json)
    string(REPLACE "\"" "\\\"" json "${json}")
    string(REPLACE "\n" "\\n" json "${json}")
    string(APPEND rows "    {\"${name}\", \"${json}\"},\n")
  endforeach()
  file(CONFIGURE OUTPUT ${file} CONTENT
"/* From configs/xtuner, by cmake/presets.cmake. */
static const struct preset presets[] = {
@rows@};
" @ONLY)
endfunction()
