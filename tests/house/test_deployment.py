"""compose.yaml, the Dockerfile, docs/deploying.md and SECURITY.md hold to what is said of them."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.exceptions
import typer.main
import yaml

from siafu.cli.main import app

HERE = Path(__file__).parents[2]
COMPOSE, DOCKERFILE, SECURITY = (HERE / name for name in ("compose.yaml", "Dockerfile", "SECURITY.md"))
DEPLOYING = HERE / "docs" / "deploying.md"
SERVERS = ("postgres", "redis")
SERVICES = (*SERVERS, "upgrade", "worker", "serve", "sim", "payments", "worker-sim")


def compose_problems(text: str) -> list[str]:
    """What is not as it should be in a compose file."""
    found = yaml.safe_load(text)
    services: dict[str, dict[str, Any]] = found["services"]
    wrong = [f"no service {name}" for name in SERVICES if name not in services]
    for name, service in services.items():
        wrong += [f"{name}: {problem}" for problem in _hardening(name, service)]
        wrong += [f"{name}: no volume {source}" for source in _volumes(service) if source not in found["volumes"]]
        if service["image"] == "siafu:local":
            if service.get("pull_policy") != "never":
                wrong.append(f"{name}: takes an image of that name from a registry")
            wrong += [f"{name}: {problem}" for problem in command_problems(service["command"])]
    for name in SERVERS:
        if "ports" in services[name] or services[name]["networks"] != ["inside"]:
            wrong.append(f"{name}: can be reached from outside")
        if not _volumes(services[name]):
            wrong.append(f"{name}: keeps nothing in a volume")
    if found["networks"]["inside"] != {"internal": True}:
        wrong.append("the network inside leads outside")
    wrong += [f"{name} has a default" for name in re.findall(r"\$\{(\w*PASSWORD)(?!:\?)[^}]*\}", text)]
    for name in SERVERS:
        if f"{name.upper()}_PASSWORD" not in services[name]["environment"]:
            wrong.append(f"{name}: no password")
    if "requirepass" not in str(services["redis"]["command"]):
        wrong.append("redis: no password")
    token = "${SIAFU_METRICS_TOKEN:+"
    for name in ("worker", "worker-sim"):
        if not str(services[name]["environment"].get("SIAFU_METRICS", "")).startswith(token):
            wrong.append(f"{name}: no metrics, or without a token")
    if any("trust" in str(value) for value in services["postgres"]["environment"].values()):
        wrong.append("postgres: lets in without a password")
    return wrong


def _hardening(name: str, service: dict[str, Any]) -> list[str]:
    limits = service.get("deploy", {}).get("resources", {}).get("limits", {})
    health = service.get("healthcheck", {})
    checks = {
        "may run as root": str(service.get("user", "root")).split(":")[0] in ("root", "0"),
        "can write its file system": service.get("read_only") is not True,
        "keeps capabilities": service.get("cap_drop") != ["ALL"] or "cap_add" in service,
        "may gain privileges": "no-new-privileges:true" not in service.get("security_opt", []),
        "is privileged": service.get("privileged", False) or "pid" in service or service.get("network_mode") == "host",
        "has no limits": not {"cpus", "memory", "pids"} <= limits.keys(),
        "has no health check": name != "upgrade" and not health.get("test"),
        "has no fixed version": ":" not in service["image"] or service["image"].endswith(":latest"),
        "is published to everybody": any(not str(port).startswith("127.0.0.1:") for port in service.get("ports", [])),
    }
    return [problem for problem, wrong in checks.items() if wrong]


def _volumes(service: dict[str, Any]) -> list[str]:
    return [volume.split(":")[0] for volume in service.get("volumes", [])]


def command_problems(words: list[str]) -> list[str]:
    """What siafu's parser has against a command; nothing is run."""

    def parse(command: Any, words: list[str]) -> None:
        with command.make_context(command.name, list(words)) as context:
            if hasattr(command, "commands"):
                parse(*command.resolve_command(context, [*context._protected_args, *context.args])[1:])

    try:
        parse(typer.main.get_command(app), words)
    except typer.exceptions.TyperException as error:
        return [f"siafu {shlex.join(words)}: {error}"]
    return []


def guide_problems(text: str) -> list[str]:
    """What docs/deploying.md has of containers that compose.yaml, or siafu, does not."""
    services = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    wrong = []
    lines = re.findall(r"^    (docker compose .*)", text.replace("\\\n", ""), re.MULTILINE)
    assert len(lines) > 10
    for line in lines:
        words = shlex.split(line.partition(" < ")[0], comments=True)
        named = next((word for word in words[3:] if word in services), None)
        if named is None:
            wrong.append(f"no service: {line}")
        elif words[2] in ("run", "exec") and named not in SERVERS and "--entrypoint" not in words:
            asked = words[words.index(named) + 1 :]
            wrong += command_problems(asked[1:] if words[2] == "exec" else asked)
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    own, scraped = (yaml.safe_load(block) for block in blocks)
    wrong += [f"no service: {name}" for name in own["services"] if name not in services]
    for target in scraped["scrape_configs"][0]["dns_sd_configs"]:
        for name in target["names"]:
            if f":{target['port']}" not in str(services.get(name)):
                wrong.append(f"not on port {target['port']}: {name}")
    return wrong


def dockerfile_problems(text: str) -> list[str]:
    """What is not as it should be in a Dockerfile."""
    lines = text.replace("\\\n", " ").splitlines()
    stages = [line.split()[1] for line in lines if line.startswith("FROM ")]
    last = text[text.rindex("\nFROM ") :]
    users = re.findall(r"^USER (\S+)", last, re.MULTILINE)
    wrong = [f"{image} has no fixed version" for image in stages if ":" not in image or image.endswith(":latest")]
    if not users or users[-1].split(":")[0] in ("root", "0"):
        wrong.append("it runs as root")
    commands = re.findall(r"pip (?:install|wheel)[^&\n]*", "\n".join(lines))
    by_hash = ("--require-hashes -r requirements/", "--no-deps")
    wrong += [f"not by hash: {each.strip()}" for each in commands if not any(words in each for words in by_hash)]
    if re.search(r"^(ENV|ARG) .*(PASSWORD|SECRET|API_KEY)", text, re.MULTILINE):
        wrong.append("a secret in the image")
    return wrong


def pinned(name: str) -> dict[str, str]:
    """Packages and versions of a lock."""
    text = (HERE / "requirements" / name).read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", text, re.MULTILINE))


def test_sec41_the_services_are_closed_limited_and_not_root() -> None:
    assert compose_problems(COMPOSE.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('volumes: ["postgres:/var', 'ports: ["5432:5432"]\n    volumes: ["postgres:/var', "postgres: can be reached"),
        ("    networks: [inside]\n    shm_size", "    networks: [outside]\n    shm_size", "postgres: can be reached"),
        ("${REDIS_PASSWORD:?set REDIS_PASSWORD in .env}", "${REDIS_PASSWORD:-redis}", "REDIS_PASSWORD has a default"),
        ("${POSTGRES_PASSWORD:?set POSTGRES_PASSWORD in .env}", "${POSTGRES_PASSWORD}", "POSTGRES_PASSWORD has a"),
        ("requirepass", "maxclients", "redis: no password"),
        ("      POSTGRES_PASSWORD: ", "      NOBODY: ", "postgres: no password"),
        ("--auth-host=scram-sha-256", "--auth-host=trust", "postgres: lets in"),
        ('volumes: ["redis:/data"]', "volumes: []", "redis: keeps nothing"),
        ("user: postgres", "user: root", "postgres: may run as root"),
        ('user: "10001:10001"', 'user: "0:0"', "worker: may run as root"),
        ("read_only: true", "read_only: false", "serve: can write"),
        ("cap_drop: [ALL]", "cap_drop: []", "redis: keeps capabilities"),
        ('["no-new-privileges:true"]', "[]", "worker: may gain"),
        ("memory: 1g, ", "", "worker: has no limits"),
        ("healthcheck: &worker_health", "check: &worker_health", "worker: has no health check"),
        ('"127.0.0.1:8080:8080"', '"8080:8080"', "serve: is published"),
        ("inside: {internal: true}", "inside: {}", "the network inside"),
        ("image: redis:8", "image: redis", "redis: has no fixed"),
        ("  worker: {}\n", "", "worker: no volume worker"),
        ("${SIAFU_METRICS_TOKEN:+0.0.0.0:8000}", "0.0.0.0:8000", "worker: no metrics"),
        ("pull_policy: never  # up", "build: .  # up", "worker: takes an image"),
        ("[payments, serve, --ledger, paid.jsonl,", "[payments, serve,", "payments: siafu payments serve --port 9200:"),
        ('[worker, --min, "8", --max, "64"]', '[worker, --mim, "8"]', "worker: siafu worker --mim"),
    ],
)
def test_the_check_of_the_services_can_fail(old: str, new: str, said: str) -> None:
    _fails(compose_problems, COMPOSE, old, new, said)


def test_what_the_guide_says_of_containers_is_there() -> None:
    assert guide_problems(DEPLOYING.read_text(encoding="utf-8")) == []
    assert {".env", "compose.override.yaml"} <= set((HERE / ".gitignore").read_text(encoding="utf-8").split())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("rm worker tasks watch", "rm worker tasks wacth", "siafu tasks wacth: "),
        ("run --rm worker tasks watch", "run --rm workers tasks watch", "no service: docker compose run --rm workers"),
        ("create --name web", "create --nam web", "siafu keys create --nam"),
        ("  serve: *own", "  server: *own", "no service: server"),
        ("names: [worker], type: A, port: 8000", "names: [worker], type: A, port: 8001", "not on port 8001: worker"),
    ],
)
def test_the_check_of_the_guide_can_fail(old: str, new: str, said: str) -> None:
    _fails(guide_problems, DEPLOYING, old, new, said)


def test_sec41_the_image_is_not_root_and_comes_by_hash() -> None:
    assert dockerfile_problems(DOCKERFILE.read_text(encoding="utf-8")) == []
    image = pinned("image.txt")
    assert image.items() >= pinned("runtime.txt").items()
    assert {"psycopg", "psycopg-binary", "redis", "opentelemetry-sdk"} <= image.keys()
    ignored = (HERE / ".dockerignore").read_text(encoding="utf-8").split()
    assert ignored[0] == "*"  # nothing else goes in, such as a .env


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("USER 10001:10001", "USER root", "it runs as root"),
        ("USER 10001:10001\n", "", "it runs as root"),
        ("--require-hashes -r requirements/image.txt", "-r requirements/image.txt", "not by hash"),
        ("FROM python:3.13-slim-trixie AS build", "FROM python AS build", "python has no fixed version"),
        ("STOPSIGNAL SIGTERM", "ENV OPENAI_API_KEY=x", "a secret"),
    ],
)
def test_the_check_of_the_image_can_fail(old: str, new: str, said: str) -> None:
    _fails(dockerfile_problems, DOCKERFILE, old, new, said)


def security_problems(text: str) -> list[str]:
    """What a security policy has to say."""
    wanted = {
        "how to report in private": r"security advisories.*\bprivate|private.*security advisories",
        "not in public": r"do not open a public issue",
        "how soon an answer comes": r"within \w+ working days",
        "which versions get fixes": r"## Supported versions\n",
        "how a release can be checked": r"signed tag",
    }
    flat = re.sub(r"(?<!\n)\n(?!\n|#|\|)", " ", text)
    return [what for what, words in wanted.items() if not re.search(words, flat, re.IGNORECASE)]


def test_sec40_how_to_report_and_which_versions_are_supported() -> None:
    text = SECURITY.read_text(encoding="utf-8")
    assert security_problems(text) == []
    version = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"| {version.rpartition('.')[0]} | yes |" in text


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("## Supported versions", "## Versions", "which versions get fixes"),
        ("public issue", "issue", "not in public"),
        ("signed tag", "tag", "how a release can be checked"),
    ],
)
def test_the_check_of_the_policy_can_fail(old: str, new: str, said: str) -> None:
    _fails(security_problems, SECURITY, old, new, said)


def _fails(problems: Callable[[str], list[str]], file: Path, old: str, new: str, said: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    assert any(problem.startswith(said) for problem in problems(text.replace(old, new)))
