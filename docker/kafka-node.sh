#!/usr/bin/env bash
# Starts one node: kafka-node.sh NAME HOST_PORT CLUSTER_ID. Passwords come from a mounted secret and go into private
# files only, never into the environment or a command line.
set -euo pipefail
umask 077
name=$1 host_port=$2 cluster_id=$3
kafka=${KAFKA_DIR:-/opt/kafka} secrets=${SECRETS_FILE:-/run/secrets/passwords} work=${WORK_DIR:-/var/lib/kafka/data}
template=${TEMPLATE:-/etc/mirrorbook/server.properties}

password_of() { sed -n "s/^$1=//p" "$secrets"; }

sed -e "s/@HOST_PORT@/$host_port/g; s/@NAME@/$name/g" -e "s|/var/lib/kafka/data|$work|" \
    -f <(printf 's/@PASSWORD@/%s/g\n' "$(password_of admin)") "$template" > "$work/server.properties"

if [ ! -e "$work/formatted" ]; then
    rm -rf "$work/log"  # half formatted: no broker has run on it
    {
        printf '%s\n' format --cluster-id "$cluster_id" --config "$work/server.properties"
        for user in admin mirror-control mirror-data app; do
            printf '%s\n' --add-scram "SCRAM-SHA-512=[name=$user,password=$(password_of "$user")]"
        done
    } > "$work/format.args"
    "$kafka/bin/kafka-storage.sh" "@$work/format.args"
    rm "$work/format.args"
    touch "$work/formatted"
fi
exec "$kafka/bin/kafka-server-start.sh" "$work/server.properties"
