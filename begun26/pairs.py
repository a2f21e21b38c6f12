import subprocess,json,statistics,time,sys
B={'old':'/tmp/house/old/build/kernelrl','new':'/tmp/house/new/build/kernelrl'}
def run(b,what):
    o=subprocess.run([B[b],'bench',*what],capture_output=True,text=True,cwd='/tmp/house/'+b).stdout
    return [json.loads(l) for l in o.splitlines() if l.startswith('{')]
rate=lambda r: next(r[k] for k in('tok_s','tokens_per_s','tokens_s') if k in r)
for what in (['decode','--model','models/tiny','--batch','16','--threads','1'],['train','--model','models/tiny','--batch','4','--tokens','128','--threads','1']):
    rows={'old':[],'new':[]}
    for i in range(9):
        for b in (('old','new') if i%2==0 else ('new','old')):
            rows[b].append(run(b,what))
    if len(sys.argv)>1 or not rows['old'][0]: print(rows['old'][0])
    for k in range(len(rows['old'][0])):
        q=[rate(n[k])/rate(o[k]) for o,n in zip(rows['old'],rows['new'])]
        g=sorted(q)
        r=rows['old'][0][k]
        print(what[0],{x:r[x] for x in r if isinstance(r[x],str) and len(r[x])<30},'ratio new/old median %.4f min %.4f max %.4f n %d'%(statistics.median(q),g[0],g[-1],len(q)),'best/best %.4f'%(max(rate(n[k]) for n in rows['new'])/max(rate(o[k]) for o in rows['old'])),open('/proc/loadavg').read().split()[:3],flush=True)
