# SPDX-License-Identifier: Apache-2.0
# With KVTOOL_UNITY, the sources of a folder are compiled as one: most of the time to compile one of
# them goes into headers and templates that its neighbours need as well. Names in anonymous namespaces are
# therefore unique within a folder; tests each have a namespace of their own. What does not say kv_unite is compiled source by source; so are kernels,
# which Highway includes again for each target.
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

# Compiles folders that include the same large headers as one. Called after kv_unite, in the directory of the
# target.
function(kv_unite_folders group)
  foreach(folder ${ARGN})
    file(GLOB sources ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cc)
    set_source_files_properties(${sources} PROPERTIES UNITY_GROUP ${group})
  endforeach()
endfunction()
