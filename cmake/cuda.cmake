# STRATA_CUDA: whether the cuda device is built.  Sets STRATA_HAVE_CUDA; makes strata_cuda, what includes and links CUDA's runtime
# (statically: the program starts on machines without a driver), and the function strata_cuda_library.
#
# nvcc is called as a tool, not enabled as a language: an object that CMake knows as CUDA's makes every program that links it,
# and every project that uses the installed library, link as CUDA and C++ do.
set(STRATA_CUDA AUTO CACHE STRING "The cuda device: AUTO (where nvcc is found), ON or OFF")
set_property(CACHE STRATA_CUDA PROPERTY STRINGS AUTO ON OFF)
# 80 runs on 86 and 89, too.  What is later than the last one compiles its PTX at the first start, which takes minutes.
set(STRATA_CUDA_ARCHITECTURES "80;90" CACHE STRING "GPU architectures with code of their own, 75 and later; native: those of this machine's GPUs")
option(STRATA_CUDA_DRAFT "Device code that compiles in a fifth of the time and runs slowly: where there is no GPU to run it" OFF)
set(STRATA_CUDA_FLAGS "" CACHE STRING "More flags for nvcc; -lineinfo for profilers makes the program several times larger")
add_library(strata_cuda INTERFACE)
set(STRATA_HAVE_CUDA OFF)
if(STRATA_CUDA STREQUAL "OFF")
  return()
endif()

find_program(STRATA_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(STRATA_NVCC)
  file(REAL_PATH ${STRATA_NVCC} nvcc)
  get_filename_component(nvcc_root ${nvcc} DIRECTORY)
  get_filename_component(nvcc_root ${nvcc_root} DIRECTORY)
  find_path(STRATA_CUDA_INCLUDE_DIR cuda_runtime_api.h HINTS ${nvcc_root}/include ${nvcc_root}/targets/x86_64-linux/include)
  find_library(STRATA_CUDART_LIBRARY libcudart_static.a
    HINTS ${nvcc_root}/lib64 ${nvcc_root}/lib ${nvcc_root}/targets/x86_64-linux/lib)
endif()
find_program(STRATA_CUDA_HOST_COMPILER NAMES g++ c++ clang++)
foreach(part NVCC CUDA_INCLUDE_DIR CUDART_LIBRARY CUDA_HOST_COMPILER)
  if(NOT STRATA_${part})
    list(APPEND STRATA_CUDA_MISSING ${part})
  endif()
endforeach()
if(STRATA_CUDA_MISSING)
  list(JOIN STRATA_CUDA_MISSING ", " missing)
  if(STRATA_CUDA STREQUAL "ON")
    message(FATAL_ERROR "STRATA_CUDA=ON, but not found: ${missing} (nvcc, cuda_runtime_api.h, libcudart_static.a, a C++ compiler for nvcc)")
  endif()
  message(STATUS "cuda device: not built, not found: ${missing}")
  return()
endif()
set(STRATA_CUDA_TARGETS ${STRATA_CUDA_ARCHITECTURES})
if(STRATA_CUDA_ARCHITECTURES STREQUAL "native")
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE STRATA_CUDA_TARGETS ERROR_QUIET)
  string(REGEX MATCHALL "[0-9]+\\.[0-9]" STRATA_CUDA_TARGETS "${STRATA_CUDA_TARGETS}")
  string(REPLACE "." "" STRATA_CUDA_TARGETS "${STRATA_CUDA_TARGETS}")
  list(SORT STRATA_CUDA_TARGETS COMPARE NATURAL)
  list(REMOVE_DUPLICATES STRATA_CUDA_TARGETS)
  if(NOT STRATA_CUDA_TARGETS)
    message(FATAL_ERROR "STRATA_CUDA_ARCHITECTURES=native, but nvidia-smi names no GPU: write its architecture, such as 86")
  endif()
endif()
if(NOT STRATA_CUDA_TARGETS)
  message(FATAL_ERROR "STRATA_CUDA_ARCHITECTURES names none: write numbers such as 75;86, or native")
endif()
foreach(arch IN LISTS STRATA_CUDA_TARGETS)
  if(NOT arch MATCHES "^[0-9]+[af]?$" OR arch LESS 75)
    message(FATAL_ERROR "STRATA_CUDA_ARCHITECTURES: \"${arch}\" is not 75 or later: write numbers such as 75;86, or native")
  endif()
endforeach()
message(STATUS "cuda device: ${STRATA_NVCC}, architectures ${STRATA_CUDA_TARGETS}")

set(STRATA_HAVE_CUDA ON)
target_compile_definitions(strata_cuda INTERFACE STRATA_HAVE_CUDA=1)
target_include_directories(strata_cuda SYSTEM INTERFACE ${STRATA_CUDA_INCLUDE_DIR})
target_link_libraries(strata_cuda INTERFACE ${STRATA_CUDART_LIBRARY} Threads::Threads ${CMAKE_DL_LIBS} rt)

# Real code for each architecture, and the last one's PTX.  Assertions are for the emulator: in a kernel each costs a call that may print.
set(STRATA_NVCC_PLAIN -std=c++17 -O3 -DNDEBUG --expt-relaxed-constexpr -ccbin ${STRATA_CUDA_HOST_COMPILER} ${STRATA_CUDA_FLAGS}
  -Xcompiler -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-Wall,-Wextra)
set(STRATA_NVCC_CODE "")
foreach(arch ${STRATA_CUDA_TARGETS})
  set(STRATA_NVCC_LAST -gencode arch=compute_${arch},code=compute_${arch})
  list(APPEND STRATA_NVCC_CODE -gencode arch=compute_${arch},code=sm_${arch})
endforeach()
set(STRATA_NVCC_FLAGS ${STRATA_NVCC_PLAIN} ${STRATA_NVCC_CODE} ${STRATA_NVCC_LAST})
# A quarter of the size; the drivers that CUDA 13 needs all read it.
execute_process(COMMAND ${STRATA_NVCC} --help OUTPUT_VARIABLE nvcc_help)
if(nvcc_help MATCHES "--compress-mode")
  list(APPEND STRATA_NVCC_FLAGS --compress-mode=size)
endif()
if(STRATA_CUDA_DRAFT AND nvcc_help MATCHES "--Ofast-compile")
  list(APPEND STRATA_NVCC_FLAGS --Ofast-compile=max)
elseif(STRATA_WERROR) # a kernel that spills registers is an error, too
  list(APPEND STRATA_NVCC_FLAGS -Xptxas -warn-spills)
endif()
if(STRATA_WERROR)
  list(APPEND STRATA_NVCC_FLAGS -Werror all-warnings)
endif()

# strata_cuda_library(NAME SOURCES a.cu ... EXACT b.cu ...): a static library of kernels, and in <NAME>_OBJECTS its objects.  Of
# EXACT no product and sum is contracted to one rounding.
function(strata_cuda_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;EXACT" ${ARGN})
  set(objects "")
  foreach(source ${ARG_SOURCES} ${ARG_EXACT})
    set(flags ${STRATA_NVCC_FLAGS})
    if(source IN_LIST ARG_EXACT)
      list(APPEND flags -fmad=false)
    endif()
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${source}.o)
    get_filename_component(folder ${object} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    add_custom_command(OUTPUT ${object}
      COMMAND ${STRATA_NVCC} ${flags} -I${PROJECT_SOURCE_DIR} -I${PROJECT_SOURCE_DIR}/include -MD -MF ${object}.d -c
              ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
      DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source}
      DEPFILE ${object}.d COMMENT "Building CUDA object ${source}.o" VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  add_library(${name} STATIC ${objects})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE C)
  target_link_libraries(${name} PUBLIC strata_cuda)
  set(${name}_OBJECTS ${objects} PARENT_SCOPE)
endfunction()

# strata_cuda_resources(TABLE SOURCES a.cu ... EXACT b.cu ...): target cuda_resources compares what each kernel takes of a
# multiprocessor with TABLE, cuda_resources_update writes it (tools/gpu_resources.py).  Neither is part of all: the first build
# takes many minutes of each architecture.
set(STRATA_RESOURCE_ARCHITECTURES "80;86;89;90;100;120" CACHE STRING "Architectures that the target cuda_resources looks at")
set(STRATA_CUOBJDUMP cuobjdump CACHE STRING "cuobjdump, with nvdisasm beside it or on PATH: for cuda_resources")
function(strata_cuda_resources table)
  cmake_parse_arguments(ARG "" "" "SOURCES;EXACT" ${ARGN})
  set(cubins "")
  foreach(arch ${STRATA_RESOURCE_ARCHITECTURES})
    set(folder ${CMAKE_CURRENT_BINARY_DIR}/resources/sm_${arch})
    file(MAKE_DIRECTORY ${folder})
    foreach(source ${ARG_SOURCES} ${ARG_EXACT})
      get_filename_component(name ${source} NAME_WE)
      set(flags ${STRATA_NVCC_PLAIN} -arch=sm_${arch})
      if(source IN_LIST ARG_EXACT)
        list(APPEND flags -fmad=false)
      endif()
      set(cubin ${folder}/${name}.cubin)
      add_custom_command(OUTPUT ${cubin}
        COMMAND ${STRATA_NVCC} ${flags} -I${PROJECT_SOURCE_DIR} -I${PROJECT_SOURCE_DIR}/include -MD -MF ${cubin}.d -cubin
                ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${cubin}
        DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source}
        DEPFILE ${cubin}.d COMMENT "Building ${name} for sm_${arch}" VERBATIM)
      list(APPEND cubins ${cubin})
    endforeach()
  endforeach()
  set(tool python3 ${PROJECT_SOURCE_DIR}/tools/gpu_resources.py --cuobjdump ${STRATA_CUOBJDUMP})
  add_custom_target(cuda_resources ${tool} ${table} ${cubins} DEPENDS ${cubins} VERBATIM)
  add_custom_target(cuda_resources_update ${tool} --update ${table} ${cubins} DEPENDS ${cubins} VERBATIM)
endfunction()
