# Redis for machines that reach no image registry: Debian's own, on the base of the other images.
ARG PYTHON_IMAGE
FROM ${PYTHON_IMAGE}
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends redis-server \
    && rm -rf /var/lib/apt/lists/* \
    && mkdir --parents /data \
    && chown redis:redis /data
USER redis
WORKDIR /data
VOLUME /data
ENTRYPOINT ["redis-server"]
CMD ["--protected-mode", "no"]
