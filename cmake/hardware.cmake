# hardware_table.inc: the rows of share/strata/hardware.json as rows of C tables, so that the program needs no file for them.
function(strata_hardware_rows out json list)
  string(JSON count LENGTH "${json}" ${list})
  math(EXPR last "${count} - 1")
  set(rows "")
  foreach(i RANGE ${last})
    set(row "")
    foreach(key ${ARGN})
      string(JSON type TYPE "${json}" ${list} ${i} ${key})
      string(JSON value GET "${json}" ${list} ${i} ${key})
      if(type STREQUAL "ARRAY") # with spaces between them
        string(REGEX MATCHALL "[a-z0-9-]+" value "${value}")
        list(JOIN value " " value)
        set(type STRING)
      endif()
      if(key STREQUAL "kind") # what cards of the kind attain
        string(JSON matmul GET "${json}" attained ${value} matmul)
        string(JSON block GET "${json}" attained ${value} block)
        string(JSON memory GET "${json}" attained ${value} memory)
        string(APPEND row "${matmul}, ${block}, ${memory}, ")
      elseif(key STREQUAL "pcie")
        string(JSON lane GET "${json}" pcie_lane_gbs ${value})
        string(APPEND row "\"${value}\", ${lane}, ")
      elseif(type STREQUAL "STRING")
        string(APPEND row "\"${value}\", ")
      else()
        string(APPEND row "${value}, ")
      endif()
    endforeach()
    string(APPEND rows "    {${row}},\n")
  endforeach()
  set(${out} "${rows}" PARENT_SCOPE)
endfunction()

function(strata_hardware_table file)
  set(source ${PROJECT_SOURCE_DIR}/share/strata/hardware.json)
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
  file(READ ${source} json)
  strata_hardware_rows(cards "${json}" cards name title aliases memory_gb usable_mib capability bf16_tflops memory_gbs pcie lanes nvlink_gbs
                       kind source date)
  strata_hardware_rows(nodes "${json}" nodes cards gpus network_gbs source)
  strata_hardware_rows(drives "${json}" drives name read_gbs)
  set(links "")
  string(JSON count LENGTH "${json}" pcie_lane_gbs)
  math(EXPR last "${count} - 1")
  foreach(i RANGE ${last})
    string(JSON link MEMBER "${json}" pcie_lane_gbs ${i})
    string(JSON lane GET "${json}" pcie_lane_gbs ${link})
    string(APPEND links "    {\"${link}\", ${lane}},\n")
  endforeach()
  string(JSON endured GET "${json}" endurance tb_written_per_tb)
  string(JSON endurance_source GET "${json}" endurance source)
  file(CONFIGURE OUTPUT ${file} CONTENT
"/* From share/strata/hardware.json, by cmake/hardware.cmake. */
static const struct st_card cards[] = {
@cards@};
static const struct st_node_kind node_kinds[] = {
@nodes@};
static const struct st_link_kind link_kinds[] = {
@links@};
static const struct st_drive_kind drive_kinds[] = {
@drives@};
#define WRITES_ENDURED @endured@.0
#define ENDURANCE_SOURCE \"@endurance_source@\"
" @ONLY)
endfunction()
