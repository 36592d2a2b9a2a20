"""Signatures of requests to AWS, for the scripts in this folder."""

import hashlib
import hmac
import json
import os
import subprocess
import threading
import urllib.parse


class Failed(Exception):
    """A step failed: what was seen, and what to do."""


def suffix_of(region):
    """Returns the domain in which the services of AWS have their host names in a region. Source: AWS General Reference,
    "AWS service endpoints"; partitions.json of the SDKs."""
    if region.startswith("cn-"):
        return "amazonaws.com.cn"
    return "amazonaws.eu" if region.startswith("eusc-") else "amazonaws.com"


class Credentials:
    """What requests are signed with, in any thread. Those of the AWS command line are read when they are needed."""

    def __init__(self):
        self.values = None
        self.lock = threading.Lock()

    def get(self):
        with self.lock:
            if self.values is None:
                self.values = self.of_environment() or self.of_command_line()
            return self.values

    def forget(self, values):
        """Has these credentials, which have expired, read again, unless another thread has done so."""
        with self.lock:
            if self.values is values:
                self.values = None

    @staticmethod
    def of_environment():
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
        key, secret, token = (os.environ.get(name) for name in names)
        return (key, secret, token) if key and secret else None

    @staticmethod
    def of_command_line():
        command = ["aws", "configure", "export-credentials", "--format", "process"]
        remedy = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in with the AWS command line"
        try:
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise Failed(f"no credentials: `aws` cannot be started ({error}); {remedy}") from error
        if ended.returncode != 0:
            said = ended.stderr.strip()
            if "usage:" in said:
                said = "this version of the AWS command line has no `aws configure export-credentials`"
            raise Failed(f"no credentials: {said}; {remedy}")
        found = json.loads(ended.stdout)
        return found["AccessKeyId"], found["SecretAccessKey"], found.get("SessionToken")


def sign(credentials, service, region, method, url, body, now, more=None):
    """Returns the headers that sign a request (AWS Signature Version 4), with these among them."""
    key, secret, token = credentials.get()
    parts = urllib.parse.urlsplit(url)
    at = now.strftime("%Y%m%dT%H%M%SZ")
    digest = hashlib.sha256(body).hexdigest()
    headers = {**(more or {}), "host": parts.netloc, "x-amz-content-sha256": digest, "x-amz-date": at}
    if token:
        headers["x-amz-security-token"] = token
    names = ";".join(sorted(headers))
    # Consecutive spaces are signed as one.
    lines = "".join(f"{name}:{' '.join(headers[name].split())}\n" for name in sorted(headers))
    query = "&".join(sorted(parts.query.split("&"))) if parts.query else ""
    canonical = "\n".join([method, parts.path or "/", query, lines, names, digest])
    scope = f"{at[:8]}/{region}/{service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", at, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    derived = ("AWS4" + secret).encode()
    for part in scope.split("/"):
        derived = hmac.new(derived, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(derived, text.encode(), hashlib.sha256).hexdigest()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={key}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return headers
