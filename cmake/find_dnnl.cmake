# oneDNN, whose versions 2 and 3 kernels/matmul/matmul_dnnl.c knows: DNNL_LIBRARY, DNNL_INCLUDE_DIR, DNNL_VERSION.
#
# Each call is single-threaded by the calling thread's OpenMP team (or the library has no threads at all): a library on TBB or on
# SYCL would start threads of its own.
find_library(DNNL_LIBRARY dnnl REQUIRED)
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl_version.h REQUIRED)

file(GLOB dnnl_headers ${DNNL_INCLUDE_DIR}/oneapi/dnnl/dnnl_version*.h ${DNNL_INCLUDE_DIR}/oneapi/dnnl/dnnl_config.h)
set(dnnl_text "")
foreach(header ${dnnl_headers}) # 3.x has the numbers in a header of their own
  file(STRINGS ${header} lines REGEX "^#define DNNL_(VERSION_|CPU_THREADING)")
  string(APPEND dnnl_text "${lines}\n")
endforeach()
set(DNNL_VERSION "")
foreach(part MAJOR MINOR PATCH)
  if(NOT dnnl_text MATCHES "DNNL_VERSION_${part} +([0-9]+)")
    message(FATAL_ERROR "oneDNN: ${DNNL_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h does not say its version")
  endif()
  string(APPEND DNNL_VERSION ".${CMAKE_MATCH_1}")
endforeach()
string(SUBSTRING "${DNNL_VERSION}" 1 -1 DNNL_VERSION)
if(DNNL_VERSION VERSION_LESS 2 OR DNNL_VERSION VERSION_GREATER_EQUAL 4)
  message(FATAL_ERROR "oneDNN ${DNNL_VERSION} in ${DNNL_INCLUDE_DIR}: strata needs 2.x or 3.x (libdnnl-dev on Debian and Ubuntu); "
    "for another one set DNNL_LIBRARY and DNNL_INCLUDE_DIR")
endif()
if(NOT dnnl_text MATCHES "DNNL_CPU_THREADING_RUNTIME +DNNL_RUNTIME_(OMP|SEQ)")
  message(FATAL_ERROR "oneDNN ${DNNL_VERSION} in ${DNNL_INCLUDE_DIR} has threads of its own: strata needs one built with "
    "DNNL_CPU_RUNTIME=OMP (or SEQ), as libdnnl-dev on Debian and Ubuntu is; for another one set DNNL_LIBRARY and DNNL_INCLUDE_DIR")
endif()
message(STATUS "oneDNN ${DNNL_VERSION}: ${DNNL_LIBRARY}")
