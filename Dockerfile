# siafu with PostgreSQL, Redis and OpenTelemetry. Python's packages come by version and hash from requirements/.
#   docker build -t siafu .
FROM python:3.13-slim-trixie AS build
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY requirements/build.txt requirements/image.txt requirements/
RUN python -m venv /opt/siafu && /opt/siafu/bin/pip install --require-hashes -r requirements/image.txt \
 && python -m venv /opt/build && /opt/build/bin/pip install --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /opt/siafu/bin/pip install --no-deps --no-index /wheels/*.whl \
 && /opt/siafu/bin/python -m compileall -q /opt/siafu/lib

FROM python:3.13-slim-trixie
# For siafu db backup: the programs of the PostgreSQL that compose.yaml has.
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql-client-17 \
 && rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 10001 siafu && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin siafu \
 && install -d -o siafu -g siafu -m 0700 /var/lib/siafu
COPY --from=build /opt/siafu /opt/siafu
ENV PATH=/opt/siafu/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 SIAFU_HOME=/var/lib/siafu
WORKDIR /var/lib/siafu
VOLUME /var/lib/siafu
USER 10001:10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["siafu"]
CMD ["--help"]
