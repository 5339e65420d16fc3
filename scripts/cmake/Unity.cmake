# SPDX-License-Identifier: Apache-2.0
# With KVTOOL_UNITY, the sources of a folder are compiled as one: most of the time to compile one of
# them goes into headers and templates that its neighbours need as well. Names in anonymous namespaces are
# therefore unique within a folder. What does not say kv_unite is compiled source by source; so are kernels,
# which Highway includes again for each target.
function(kv_unite target)
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(RELATIVE_PATH folder BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    string(MAKE_C_IDENTIFIER ${folder} group)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${KVTOOL_UNITY} UNITY_BUILD_MODE GROUP)
endfunction()
