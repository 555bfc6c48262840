"""What AICI's interface, generation 2, has programs import and export: names and signatures.

A signature is the parameters and the results, "i" for i32 and "I" for i64: "ii:i" takes two and gives one.
"""

from __future__ import annotations

HOST = {
    "aici_host_read_blob": "iii:i",
    "aici_host_token_trie": ":i",
    "aici_host_module_arg": ":i",
    "aici_host_process_arg": ":i",
    "aici_host_tokens": ":i",
    "aici_host_tokenize": "ii:i",
    "aici_host_return_logit_bias": "i:i",
    "aici_host_return_process_result": "ii:",
    "aici_host_self_seq_id": ":i",
    "aici_host_eos_token": ":i",
    "aici_host_get_config": "ii:i",
    "aici_host_storage_cmd": "ii:i",
    "aici_host_stop": ":",
}

# Standard libraries import these, whether they are called or not. Nearly all are answered with "bad file descriptor".
WASI = {
    "args_get": "ii:i",
    "args_sizes_get": "ii:i",
    "clock_res_get": "ii:i",
    "clock_time_get": "iIi:i",
    "environ_get": "ii:i",
    "environ_sizes_get": "ii:i",
    "fd_advise": "iIIi:i",
    "fd_allocate": "iII:i",
    "fd_close": "i:i",
    "fd_datasync": "i:i",
    "fd_fdstat_get": "ii:i",
    "fd_fdstat_set_flags": "ii:i",
    "fd_fdstat_set_rights": "iII:i",
    "fd_filestat_get": "ii:i",
    "fd_filestat_set_size": "iI:i",
    "fd_filestat_set_times": "iIIi:i",
    "fd_pread": "iiiIi:i",
    "fd_prestat_dir_name": "iii:i",
    "fd_prestat_get": "ii:i",
    "fd_pwrite": "iiiIi:i",
    "fd_read": "iiii:i",
    "fd_readdir": "iiiIi:i",
    "fd_renumber": "ii:i",
    "fd_seek": "iIii:i",
    "fd_sync": "i:i",
    "fd_tell": "ii:i",
    "fd_write": "iiii:i",
    "path_create_directory": "iii:i",
    "path_filestat_get": "iiiii:i",
    "path_filestat_set_times": "iiiiIIi:i",
    "path_link": "iiiiiii:i",
    "path_open": "iiiiiIIii:i",
    "path_readlink": "iiiiii:i",
    "path_remove_directory": "iii:i",
    "path_rename": "iiiiii:i",
    "path_symlink": "iiiii:i",
    "path_unlink_file": "iii:i",
    "poll_oneoff": "iiii:i",
    "proc_exit": "i:",
    "random_get": "ii:i",
    "sched_yield": ":i",
}

IMPORTS = {"env": HOST, "wasi_snapshot_preview1": WASI}

EXPORTS = {
    "aici_init": ":",
    "aici_create": ":i",
    "aici_init_prompt": "i:",
    "aici_mid_process": "i:",
}

# What only programs of earlier generations export.
EARLIER = {
    "aici_post_process": "generation 1 (of January to March 2024)",
    "aici_pre_process": "generation 1 (of January to March 2024)",
    "aici_process": "its second draft (of November 2023)",
    "aici_process_prompt": "its first draft (of October 2023)",
    "aici_append_token": "its first draft (of October 2023)",
}
