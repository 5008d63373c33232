"""The hub library's side of the tests of a shared cache: client.py WHAT CACHE [REPO | LOCK]."""
import json
import sys

import huggingface_hub
from huggingface_hub.utils import WeakFileLock

what, cache, name = sys.argv[1:4]
if what == "download":
    print(huggingface_hub.snapshot_download(name, cache_dir=cache, allow_patterns=["*.json", "*.jinja", "model.safetensors"]))
elif what == "offline":
    print(huggingface_hub.snapshot_download(name, cache_dir=cache, local_files_only=True))
    print(huggingface_hub.hf_hub_download(name, "model.safetensors", cache_dir=cache, local_files_only=True))
elif what == "scan":
    info = huggingface_hub.scan_cache_dir(cache)
    print(json.dumps({
        "warnings": [str(w) for w in info.warnings],
        "incomplete": len(info.incomplete_files),
        "repos": {r.repo_id: {
            "size": r.size_on_disk,
            "revisions": {v.commit_hash: {"refs": sorted(v.refs), "files": sorted(str(f.file_path.relative_to(v.snapshot_path)) for f in v.files)} for v in r.revisions},
        } for r in info.repos},
    }))
elif what == "lock":
    with WeakFileLock(name):
        print("held", flush=True)
        sys.stdin.read()
