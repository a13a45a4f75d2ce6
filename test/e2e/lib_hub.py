"""lib_hub.py FOLDER LOG: a hub on the loopback that speaks the layouts of Hugging Face and ModelScope, and misbehaves.

FOLDER/OWNER/NAME/ are the models. The first line on stdout is "HUB-PORT CDN-PORT". Large files are redirected to the
second port. LOG gets a JSON line for each answer to a request since the last POST: port (hub or cdn), path, range,
authorization, status, sent.
POST /control with a JSON object sets what goes wrong, see DEFAULTS; what it does not name is as before.
"""
import hashlib
import http.server
import json
import os
import re
import socket
import struct
import sys
import threading
import time
import urllib.parse

ROOT, LOG = sys.argv[1], sys.argv[2]
LARGE = 100_000
DEFAULTS = {
    "page": 1000,  # files of one page of the listing
    "rate": 0,  # bytes a second of a connection
    "drop_after": 0, "drops": 0,  # so many answers of the CDN are cut off after so many bytes
    "fail": 0, "fails": 0, "retry_after": "",  # so many requests for files get this status
    "fail_api": 0, "fails_api": 0,  # so many for the listing
    "gated": False,  # asks for "Bearer good-token"
    "no_ranges": False,
    "no_hashes": False,
    "loop": False,  # redirects to itself
    "wrong_sha": "", "wrong_size": "", "by": 7, "more": "", "corrupt": "",  # names of files
    "other_total": "",  # its Content-Range speaks of another size
    "hidden": "",  # is listed, but cannot be had
    "held": "",  # comes in chunks, and the last one, which has no bytes, does not come
    "leads_to": "",  # where files are redirected to
    "sha": None,  # instead of the commit's
    "paths": [],  # listed as well
}
control = dict(DEFAULTS)
lock = threading.Lock()
hashes = {}
ports = {}
rounds = [0]  # of control


def write_log(**line):
    with lock, open(LOG, "a", encoding="utf-8") as f:
        f.write(json.dumps(line) + "\n")


def use_up(key):
    with lock:
        if control[key] <= 0:
            return False
        control[key] -= 1
        return True


def file_hash(path, kind):
    st = os.stat(path)
    key = (path, st.st_mtime_ns, st.st_size, kind)
    if key not in hashes:
        with open(path, "rb") as f:
            data = f.read()
        hashes[key] = (hashlib.sha256(data) if kind == "sha256"
                       else hashlib.sha1(b"blob %d\0" % len(data) + data)).hexdigest()
    return hashes[key]


def list_files(repo):
    """path -> (size, lfs?, hash), with the lies."""
    top, files = os.path.join(ROOT, repo), {}
    for folder, _, names in os.walk(top):
        for name in names:
            full = os.path.join(folder, name)
            path = os.path.relpath(full, top)
            size = os.path.getsize(full)
            large = size >= LARGE or path.endswith((".safetensors", ".gguf"))
            digest = file_hash(full, "sha256" if large else "sha1")
            if path == control["wrong_sha"]:
                digest = digest[:-1] + ("0" if digest[-1] != "0" else "1")
            files[path] = (size + (control["by"] if path == control["wrong_size"] else 0), large, digest)
    for path in control["paths"]:
        files[path] = (10, False, "0" * 40)
    return files


def commit(repo):
    return hashlib.sha1(json.dumps(sorted(list_files(repo).items())).encode()).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def note(self, status, sent):
        if self.round != rounds[0]:
            return  # asked by a client of an earlier round, which may be dead by now
        write_log(port=self.server.role, path=self.path, range=self.headers.get("Range"), status=status, sent=sent,
                  authorization=self.headers.get("Authorization"), cookie=self.headers.get("Cookie"))

    def answer(self, status, body=b"", **headers):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        self.send_response(status)
        for k, v in headers.items():
            self.send_header(k.replace("_", "-"), v)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.note(status, len(body))

    def do_POST(self):
        control.update(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        rounds[0] += 1
        self.round = 0
        self.answer(200)

    def do_GET(self):
        self.round = rounds[0]
        try:
            self.route()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def route(self):
        url = urllib.parse.urlsplit(self.path)
        path, query = urllib.parse.unquote(url.path), dict(urllib.parse.parse_qsl(url.query))
        if self.server.role == "cdn":
            return self.send_file(path[1:])
        if control["gated"] and self.headers.get("Authorization") != "Bearer good-token":
            refused = 403 if self.headers.get("Authorization") else 401
            return self.answer(refused, X_Error_Code="GatedRepo", X_Error_Message="Access to it is restricted")
        if path == "/api/models":
            ids = [f"{o}/{n}" for o in sorted(os.listdir(ROOT)) for n in sorted(os.listdir(os.path.join(ROOT, o)))]
            return self.answer(200, [{"id": i} for i in ids if query["search"].lower()[:4] in i.lower()])
        if path.startswith("/api/") and use_up("fails_api"):
            return self.answer(control["fail_api"])
        for pattern, serve in ((r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)", self.hf_api),
                               (r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.resolve),
                               (r"/api/v1/models/([^/]+/[^/]+)/repo(/files)?", self.modelscope)):
            m = re.fullmatch(pattern, path)
            if m:
                if not os.path.isdir(os.path.join(ROOT, m[1])):
                    return self.answer(404, {"Code": 404, "Message": "no such model"}, X_Error_Code="RepoNotFound")
                return serve(query, *m.groups())
        return self.answer(404)

    def hf_api(self, query, repo, what, revision):
        if revision not in ("main", commit(repo)):
            return self.answer(404, X_Error_Code="RevisionNotFound")
        if what == "revision":
            return self.answer(200, {"id": repo, "sha": control["sha"] or commit(repo)})
        entries = [{"type": "directory", "path": "sub", "size": 0, "oid": "0" * 40}]
        for path, (size, large, digest) in sorted(list_files(repo).items()):
            entry = {"type": "file", "path": path, "size": size}
            if control["no_hashes"]:
                pass
            elif large:
                entry.update(oid="1" * 40, lfs={"oid": digest, "size": size, "pointerSize": 130})
            else:
                entry["oid"] = digest
            entries.append(entry)
        at, page = int(query.get("cursor", 0)), control["page"]
        link = {}
        if at + page < len(entries):
            # As a mirror does it: the link names the original's host.
            link["Link"] = (f'<https://hub.invalid/api/models/{repo}/tree/{revision}?recursive=true&cursor={at + page}>; '
                            'rel="next"')
        return self.answer(200, entries[at:at + page], **link)

    def resolve(self, _, repo, revision, path):
        full = os.path.join(ROOT, repo, path)
        if path == control["hidden"] or not os.path.isfile(full) or revision not in ("main", commit(repo)):
            return self.answer(404, X_Error_Code="EntryNotFound")
        return self.give(f"{repo}/{path}")

    def modelscope(self, query, repo, files):
        if query["Revision"] != "master":
            return self.answer(404, {"Code": 10010205001, "Message": "no such revision", "Success": False})
        if files:
            listed = [{"Type": "tree", "Path": "sub", "Name": "sub", "Size": 0}]
            listed += [{"Type": "blob", "Path": p, "Name": os.path.basename(p), "Size": size,
                        "Sha256": "" if control["no_hashes"] or p in control["paths"] else
                        file_hash(os.path.join(ROOT, repo, p), "sha256")}
                       for p, (size, _, _) in list_files(repo).items()]
            return self.answer(200, {"Code": 200, "Success": True, "Data": {"Files": listed}})
        return self.give(f"{repo}/{query['FilePath']}")

    def give(self, name):
        if use_up("fails"):
            more = {"Retry_After": control["retry_after"]} if control["retry_after"] else {}
            return self.answer(control["fail"], **more)
        if control["leads_to"]:
            return self.answer(302, Location=control["leads_to"])
        if control["loop"]:
            return self.answer(302, Location=self.path)
        if os.path.getsize(os.path.join(ROOT, name)) < LARGE:
            return self.send_file(name)
        where = f"http://127.0.0.1:{ports['cdn']}/{urllib.parse.quote(name)}"
        return self.answer(302, b"moved to " + where.encode(), Location=where)

    def send_file(self, name):
        full = os.path.join(ROOT, name)
        with open(full, "rb") as f:
            data = f.read()
        path = name.split("/", 2)[2]
        etag = '"%s"' % hashlib.md5(data).hexdigest()
        if path == control["corrupt"]:
            data = data[:-1] + bytes([data[-1] ^ 1])
        begin, end, status = 0, len(data), 200
        m = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if m and not control["no_ranges"] and self.headers.get("If-Range", etag) == etag:
            begin, end, status = int(m[1]), min(int(m[2]) + 1, len(data)), 206
            if begin >= len(data):
                return self.answer(416)
        chunked = path in (control["more"], control["held"])
        self.send_response(status)
        self.send_header("ETag", etag)
        if status == 206:
            total = len(data) + (5 if path == control["other_total"] else 0)
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{total}")
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        drop = control["drop_after"] if self.server.role == "cdn" and use_up("drops") else 0
        self.send_body(data[begin:end], chunked, drop, status, path == control["held"])
        return None

    def send_body(self, data, chunked, drop, status, held):
        sent = 0
        try:
            while sent < len(data):
                part = data[sent:sent + (1 << 16)]
                if drop and sent + len(part) > drop:
                    # Not an orderly end: a reset, as from a machine that lost its memory of us.
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.close_connection = True
                    self.connection.close()
                    raise BrokenPipeError
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part) if chunked else part)
                sent += len(part)
                if control["rate"]:
                    time.sleep(len(part) / control["rate"])
            if held:
                self.rfile.read(1)  # until the client goes away
            elif chunked:
                self.wfile.write(b"9\r\nand more!\r\n0\r\n\r\n")
        finally:
            self.note(status, sent)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, role):
        self.role = role
        super().__init__(("127.0.0.1", 0), Handler)
        ports[role] = self.server_address[1]

    def handle_error(self, *_):
        pass  # clients that go away


hub, cdn = Server("hub"), Server("cdn")
threading.Thread(target=cdn.serve_forever, daemon=True).start()
print(ports["hub"], ports["cdn"], flush=True)
hub.serve_forever()
