"""What valid requests must fulfil, and docs/openapi.json cannot say: rules between parameters, names that the
operator configures, and syntax that JSON Schema does not know. schemathesis loads this (api.toml) and changes the
requests that it generated as valid ones; invalid ones stay as they are."""

import re

import schemathesis

ATTACHMENT = "attachment:0b6f1d3c-6a7e-4c53-9d0e-2f2f1a1b1c1d/1000"
DEBUG_ID = "bc6e45ac-487f-f425-3672-08b89f51ad48"
LARGE_FILE = 256 * 1024 * 1024

# The schemas of forms, with the names of their files.
FORMS = {"MinidumpForm": "upload_file_minidump", "AppleCrashReportForm": "apple_crash_report"}


def with_integers(value):
    """JSON Schema takes 7.0 for an integer; parsers of JSON do not."""
    if isinstance(value, dict):
        return {name: with_integers(one) for name, one in value.items()}
    if isinstance(value, list):
        return [with_integers(one) for one in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**64:
        return int(value)
    return value


def change_file(file):
    """A request refers to a stored file by its attachment: no other host is allowed. `from` is an expression in the
    syntax of Rust's regex."""
    if str(file.get("storage_url", "")).startswith("https:"):
        file["storage_url"] = ATTACHMENT
    for rule in file.get("rewrite_first_module") or []:
        rule["from"] = re.escape(rule["from"].encode("ascii", "ignore").decode())


def change_form(form):
    """These parts are JSON. Names of other parts, which are ignored, are plain text."""
    for name in [name for name in form if not re.fullmatch("[A-Za-z0-9_]+", name)]:
        del form[name]
    if "platform" in form:
        form["platform"] = '"native"'
    if "sources" in form:
        form["sources"] = '["uploads"]'
    if "rewrite_first_module" in form:
        form["rewrite_first_module"] = '[{"from": "^(.*) Helper$", "to": "$1"}]'
    if "storage_url" in form:
        form["storage_url"] = ATTACHMENT


def change_upload(file):
    """A name is that of a file, the first id has hexadecimal digits, and only large files have parts."""
    name = file["name"]
    if len(name.encode("utf-8", "ignore")) > 512 or "/" in name or name in (".", "..") or name.lower().endswith(".symcache"):
        file["name"] = "app.debug"
    file["ids"] = [DEBUG_ID]
    file.pop("parts", None)
    if (file.get("size") or 0) >= LARGE_FILE:
        file["size"] = LARGE_FILE - 1


def change_token(body):
    """Names and scopes have up to 128 bytes."""
    for name in ("name", "scope"):
        if len(body[name].encode("utf-8", "ignore")) > 128 or body[name] in (".", ".."):
            body[name] = "acme"


def change_job(job):
    """A debug id has hexadecimal digits, and a frame lies in one of the modules or in none."""
    job["memoryMap"] = [["crash", "BC6E45AC487FF425367208B89F51AD480"] for _ in job["memoryMap"]]
    for stack in job["stacks"]:
        for frame in stack:
            frame[0] = -1 if frame[0] >= len(job["memoryMap"]) else frame[0]


def change_query(path, query):
    """`/explain` reports on either an upload or a module, and `/symcache` returns that of a module."""
    if path == "/symbolicate-any":
        # The file may be a report of Apple, whose answers have one format.
        query.pop("format", None)
    if "source" in query:
        query["source"] = "uploads"
    if path == "/explain" and "key" in query:
        for name in set(query) - {"key"}:
            del query[name]
    elif path in ("/explain", "/symcache") and not {"debug_id", "code_id"} & set(query):
        query["debug_id"] = DEBUG_ID


@schemathesis.hook
def before_load_schema(context, raw_schema):
    """A form has either a file or the place of one. The document says so in words, because generators of clients send no
    body that is a choice. The file is a text here: schemathesis takes a form with bytes for an invalid one as soon as
    `before_call` has changed another part of it."""
    for name, file in FORMS.items():
        form = raw_schema["components"]["schemas"][name]
        form["oneOf"] = [{"required": [file]}, {"required": ["storage_url"]}]
        del form["properties"][file]["format"]


@schemathesis.hook
def before_call(context, case, kwargs):
    meta = case.meta
    if meta is None or meta.generation.mode.is_negative:
        return
    body = case.body
    if isinstance(body, dict):
        if case.media_type == "application/json":
            body = case.body = with_integers(body)
        if case.media_type == "multipart/form-data":
            change_form(body)
        # Only configured sources may be named, and none may be defined.
        elif body.get("sources"):
            body["sources"] = ["uploads"]
        if isinstance(body.get("symbolicate"), dict):
            change_file(body["symbolicate"])
        for file in body.get("files", []):
            change_upload(file)
        if case.operation.path == "/symbolicate/v5":
            for job in body["jobs"]:
                change_job(job)
        if case.operation.path == "/tokens":
            change_token(body)
        if case.operation.path == "/uploads" and "scope" in (case.query or {}):
            # The query and the body name the same scope.
            body["scope"] = case.query["scope"]
    if case.query is not None:
        change_query(case.operation.path, case.query)
    # The version that a client has is less than the one that it requests.
    for name in list(case.headers or {}):
        if name.lower() == "if-version-exceeds":
            case.headers[name] = "1.0.0"
