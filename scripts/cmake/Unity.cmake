# SPDX-License-Identifier: Apache-2.0
# With KVTOOL_UNITY, the sources of a folder are compiled as one, because most of each one's time goes into headers and
# templates that its neighbours need, too. Names in anonymous namespaces are therefore unique within a folder; tests
# each have a namespace of their own. Targets without kv_unite are compiled source by source, and so are kernels, which
# Highway includes again for each SIMD target.
function(kv_unite target)
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    cmake_path(ABSOLUTE_PATH source OUTPUT_VARIABLE absolute)
    cmake_path(GET absolute PARENT_PATH folder)
    cmake_path(RELATIVE_PATH folder BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    string(MAKE_C_IDENTIFIER ${folder} group)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${KVTOOL_UNITY} UNITY_BUILD_MODE GROUP)
endfunction()

# Compiles the sources of several folders that include the same large headers as one. Call it after kv_unite, in the
# directory of the target.
function(kv_unite_folders group)
  foreach(folder ${ARGN})
    file(GLOB sources ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cc)
    set_source_files_properties(${sources} PROPERTIES UNITY_GROUP ${group})
  endforeach()
endfunction()
